"""Attention of a draft tree over a static KV cache, each row as if it were decoded alone."""

from torch import Tensor, arange, cat


def visible_slots(length: int, row: int, ancestors: int) -> Tensor:
    """Cache slots row `row` sees, by position: the `length` committed ones, then its ancestors' and its own."""
    own = [length + i for i in range(row + 1) if ancestors >> i & 1]
    return cat((arange(length), arange(0).new_tensor(own)))


def tree_attention(
    query: Tensor, keys: Tensor, values: Tensor, length: int, ancestors: list[int], window: int | None
) -> Tensor:
    """Softmax attention of M tree rows, fp32 [M, heads, D] → [M, heads, D].

    `keys`, `values`: fp32 [kv_heads, S, D], where the rows' own keys and values lie at slots `length` + row.
    Row i sees slots below `length` and those of its ancestors (bit j of `ancestors[i]`), which are its path, so a
    key's position is its place in that list; `window` (positions) hides older keys. Rows are worked out one by
    one with sums in order of position: a row is bit-equal to plain decoding of its path.
    """
    kv_heads, _, head_dim = keys.shape
    grouped = query.unflatten(1, (kv_heads, -1)) * head_dim**-0.5
    rows = []
    for row, mask in enumerate(ancestors):
        slots = visible_slots(length, row, mask)
        slots = slots if window is None else slots[-window:]
        k, v = keys[:, slots], values[:, slots]  # [kv_heads, n, D]
        scores = (grouped[row].unsqueeze(2) * k.unsqueeze(1)).sum(-1)  # [kv_heads, group, n]
        rows.append((scores.softmax(-1).unsqueeze(-1) * v.unsqueeze(1)).sum(2).flatten(0, 1))
    return cat([row.unsqueeze(0) for row in rows])
