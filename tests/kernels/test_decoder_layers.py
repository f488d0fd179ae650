"""All decoder layers in one operator: equal to the plain composition, drafted rows to sequential decoding."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import native
from kernels.decoder_layers import LayerStack, StackLayer, decoder_layers, stack
from kernels.linear4 import Packed4, linear4, pack
from kernels.weight4 import quantise_affine

pytestmark = pytest.mark.skipif(not native.load(), reason=f"no C++: {native.status().reason}")

FAMILIES = {
    "llama": {},
    "multi_head": {"kv_heads": 4},
    "multi_query": {"kv_heads": 1},
    "qwen2_bias": {"bias": True},
    "qwen3_head_norms": {"head_norms": True},
    "mistral_window": {"window": 50},
    "window_over_a_split": {"window": 200},
    "head_dim_96": {"head_dim": 96, "heads": 6},
    "rope_scale": {"rope_scale": 1.3},
}


class Model:
    """Random layers of a small decoder, their stack, and the plain composition."""

    def __init__(
        self,
        layers: int = 3,
        hidden: int = 96,
        middle: int = 160,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 32,
        bias: bool = False,
        head_norms: bool = False,
        window: int | None = None,
        rope_scale: float = 1.0,
    ) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        def weight(n: int, k: int) -> Tensor:
            return normal(n, k) / k**0.5

        width = (heads + 2 * kv_heads) * head_dim
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.hidden, self.window, self.rope_scale = hidden, window, rope_scale
        self.layers = [
            StackLayer(
                1 + normal(hidden) / 10,
                pack(quantise_affine(weight(width, hidden))),
                normal(width) / 10 if bias else None,
                1 + normal(head_dim) / 10 if head_norms else None,
                1 + normal(head_dim) / 10 if head_norms else None,
                pack(quantise_affine(weight(hidden, heads * head_dim))),
                1 + normal(hidden) / 10,
                pack(quantise_affine(weight(2 * middle, hidden))),
                pack(quantise_affine(weight(hidden, middle))),
            )
            for _ in range(layers)
        ]
        self.inverse_frequency = 10000 ** (-torch.arange(0, head_dim, 2) / head_dim)
        prepared = stack(
            self.layers,
            head_dim,
            self.inverse_frequency,
            rope_scale,
            1e-5,
            window,
            taps=(0, layers // 2, layers - 1),
        )
        assert prepared is not None
        self.stack: LayerStack = prepared

    def cache(self, slots: int = 600) -> tuple[Tensor, Tensor]:
        """Keys and values full of NaN: what is read before it is written shows."""
        shape = (len(self.layers), self.kv_heads, slots, self.head_dim)
        return torch.full(shape, float("nan")), torch.full(shape, float("nan"))

    def run(self, x: Tensor, depth: Tensor, ancestor: Tensor, length: int, cache: tuple[Tensor, Tensor]) -> Tensor:
        return decoder_layers(self.stack, x, depth, ancestor, torch.tensor([length]), *cache)[0]

    def prefill(self, x: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        parts = []
        for start in range(0, len(x), 64):
            rows = x[start : start + 64]
            parts.append(self.run(rows, *chain(len(rows)), start, cache))
        return torch.cat([*parts, x[:0]])

    def plain(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same layers on a whole sequence [T, H] at once, masked; and what enters the taps."""
        positions = torch.arange(len(x))
        angle = positions[:, None] * self.inverse_frequency
        cos, sin = (part[:, None] * self.rope_scale for part in (angle.cos(), angle.sin()))
        distance = positions[:, None] - positions
        seen = (distance >= 0) if self.window is None else (distance >= 0) & (distance < self.window)

        def norm(v: Tensor, weight: Tensor) -> Tensor:
            return v * (v.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight

        def rotate(v: Tensor) -> Tensor:
            a, b = v.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

        entering = []
        for layer in self.layers:
            entering.append(x)
            qkv = linear4(norm(x, layer.input_norm), layer.qkv, layer.qkv_bias).view(len(x), -1, self.head_dim)
            query, key, value = qkv.split([self.heads, self.kv_heads, self.kv_heads], 1)
            if layer.q_norm is not None and layer.k_norm is not None:
                query, key = norm(query, layer.q_norm), norm(key, layer.k_norm)
            mixed = torch.nn.functional.scaled_dot_product_attention(
                *(part.transpose(0, 1) for part in (rotate(query), rotate(key), value)),
                attn_mask=seen,
                enable_gqa=True,
            )
            x = x + linear4(mixed.transpose(0, 1).flatten(1), layer.out)
            gate, up = linear4(norm(x, layer.post_norm), layer.gate_up).chunk(2, -1)
            x = x + linear4(torch.nn.functional.silu(gate) * up, layer.down)
        taps = (0, len(self.layers) // 2, len(self.layers) - 1)
        return x, torch.cat([entering[tap] for tap in taps], -1)


def chain(rows: int) -> tuple[Tensor, Tensor]:
    """Depth and ancestors of a path of `rows` rows; bit 63 makes the int64 mask negative."""
    masks = [(1 << (i + 1)) - 1 for i in range(rows)]
    return torch.arange(rows), torch.tensor([mask - (1 << 64) if mask >> 63 else mask for mask in masks])


def random_tree(rows: int, seed: int) -> tuple[list[int], Tensor, Tensor]:
    """Parents (-1 for the root), depth and ancestors of a random tree, parents before children."""
    generator = torch.Generator().manual_seed(seed)
    parents, depth, masks = [-1], [0], [1]
    for i in range(1, rows):
        parent = max(int(torch.randint(0, i, (1,), generator=generator)), i - 6)
        parents.append(parent)
        depth.append(depth[parent] + 1)
        masks.append(masks[parent] | 1 << i)
    signed = [mask - (1 << 64) if mask >> 63 else mask for mask in masks]
    return parents, torch.tensor(depth), torch.tensor(signed)


def tokens(count: int, hidden: int = 96, seed: int = 1) -> Tensor:
    return torch.randn(count, hidden, generator=torch.Generator().manual_seed(seed))


def row_errors(y: Tensor, reference: Tensor) -> Tensor:
    return (y - reference).norm(dim=-1) / reference.norm(dim=-1)


def assert_close(y: Tensor, reference: Tensor) -> None:
    """Rows agree to fp32, but where a last bit turned an activation's rounding to int8 (a step of 1/127).

    Every group of 32 has a scale of its own, and so its own chance of that: up to nine rows in ten are hit.
    """
    errors = row_errors(y, reference)
    assert float(errors.quantile(0.05)) < 2e-6
    assert float(errors.max()) < 0.02


@pytest.fixture(params=["avx512_vnni", "avx_vnni", "avx2", "scalar"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    best = torch.ops.dart.cpu_path()
    try:
        torch.ops.dart.select_cpu_path(request.param)
    except RuntimeError:
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    torch.ops.dart.select_cpu_path(best)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_plain_composition(family: str) -> None:
    model = Model(**FAMILIES[family])
    x = tokens(300)
    expected, expected_taps = model.plain(x)
    cache = model.cache()
    hidden, tapped = [], []
    for start in range(0, 300, 60):
        rows = x[start : start + 60]
        y, taps = decoder_layers(model.stack, rows, *chain(60), torch.tensor([start]), *cache)
        hidden.append(y)
        tapped.append(taps)
    assert_close(torch.cat(hidden), expected)
    assert torch.equal(torch.cat(tapped)[:, :96], x)
    assert_close(torch.cat(tapped), expected_taps)


def test_every_instruction_set_equals_the_plain_composition(path: str) -> None:
    model = Model(head_norms=True)
    x = tokens(64)
    assert_close(model.prefill(x, model.cache()), model.plain(x)[0])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [0, 97, 250])
def test_drafted_rows_are_bit_equal_to_decoding_their_path(family: str, length: int) -> None:
    model = Model(**FAMILIES[family])
    prompt, drafted = tokens(length), tokens(64, seed=2)
    cache = model.cache()
    model.prefill(prompt, cache)
    parents, depth, ancestor = random_tree(64, seed=length)
    tree = model.run(drafted, depth, ancestor, length, (cache[0].clone(), cache[1].clone()))
    deepest = int(depth.argmax())
    for leaf in (0, 63, deepest):
        rows = []
        node = leaf
        while node >= 0:
            rows.append(node)
            node = parents[node]
        sequential = (cache[0].clone(), cache[1].clone())
        for step, row in enumerate(reversed(rows)):
            alone = model.run(drafted[row : row + 1], *chain(1), length + step, sequential)
            assert torch.equal(alone[0], tree[row])


def test_prefill_is_bit_equal_to_decoding(path: str) -> None:
    model = Model()
    x = tokens(140)
    whole, single = model.cache(), model.cache()
    hidden = model.prefill(x, whole)
    rows = [model.run(x[i : i + 1], *chain(1), i, single) for i in range(140)]
    assert torch.equal(torch.cat(rows), hidden)
    assert torch.equal(whole[0][:, :, :140], single[0][:, :, :140])
    assert torch.equal(whole[1][:, :, :140], single[1][:, :, :140])


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 8, 9, 16, 33])
def test_a_row_is_the_same_bits_whatever_the_number_of_rows(rows: int) -> None:
    model = Model()
    cache = model.cache()
    model.prefill(tokens(150), cache)
    _, depth, ancestor = random_tree(64, seed=7)
    drafted = tokens(64, seed=3)
    full = model.run(drafted, depth, ancestor, 150, cache)
    assert torch.equal(model.run(drafted[:rows], depth[:rows], ancestor[:rows], 150, cache), full[:rows])


def test_a_row_does_not_depend_on_threads() -> None:
    model = Model()
    x = tokens(140)
    expected = model.prefill(x, model.cache())
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(model.prefill(x, model.cache()), expected)
            assert torch.equal(model.prefill(x[:3], model.cache()), expected[:3])
    finally:
        torch.set_num_threads(threads)


def test_a_row_that_is_not_finite_stays_so_and_leaves_the_others() -> None:
    model = Model()
    cache = model.cache()
    depth, ancestor = torch.tensor([0, 1, 1]), torch.tensor([0b1, 0b11, 0b101])
    x = tokens(3)
    good = model.run(x, depth, ancestor, 0, cache)
    x[1, 5] = float("inf")
    y = model.run(x, depth, ancestor, 0, cache)
    assert y[1].isnan().all()
    assert torch.equal(y[::2], good[::2])


def test_opcheck() -> None:
    model = Model()
    layers, (keys, values) = model.stack, model.cache(8)
    arguments = (
        tokens(2), *chain(2), torch.tensor([0]), keys, values, layers.inverse_frequency, 1.0, layers.norms,
        None, None, layers.data, layers.tables, layers.formats, layers.units, 1e-5, 0, [0, 1, 2],
    )  # fmt: skip
    torch.library.opcheck(
        torch.ops.dart.decoder_layers.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


def test_wrong_arguments_are_errors() -> None:
    model = Model()
    cache = model.cache(8)
    depth, ancestor = chain(2)
    x = tokens(2)
    wrong = [
        (x.double(), depth, ancestor, 0, cache),
        (x[:, :64], depth, ancestor, 0, cache),
        (tokens(96).T[:2].T.contiguous().T, depth, ancestor, 0, cache),
        (tokens(65), *chain(2), 0, cache),
        (x[:0], depth[:0], ancestor[:0], 0, cache),
        (x, depth.int(), ancestor, 0, cache),
        (x, depth[:1], ancestor, 0, cache),
        (x, depth, torch.tensor([1, 1]), 0, cache),  # a row that does not see itself
        (x, depth, torch.tensor([3, 3]), 0, cache),  # a row that sees a later one
        (x, torch.tensor([0, 2]), ancestor, 0, cache),  # not the depth of its path
        (x, depth, ancestor, 7, cache),  # full
        (x, depth, ancestor, -1, cache),
        (x, depth, ancestor, 0, (cache[0][:, :, ::2], cache[1][:, :, ::2])),
        (x, depth, ancestor, 0, (cache[0], cache[1].half())),
        (x, depth, ancestor, 0, (cache[0][:2], cache[1][:2])),
    ]
    for arguments in wrong:
        with pytest.raises(RuntimeError, match="decoder_layers"):
            model.run(*arguments)
    assert bool(cache[0].isnan().all())


def test_layers_that_do_not_fit_have_no_stack() -> None:
    model = Model()
    assert stack(model.layers, 48, model.inverse_frequency, 1.0, 1e-5, None, ()) is None
    weight = quantise_affine(torch.randn(96, 160))
    elsewhere = [replace(model.layers[0], down=Packed4(weight.shape, weight))]
    assert stack(elsewhere, 32, model.inverse_frequency, 1.0, 1e-5, None, ()) is None
