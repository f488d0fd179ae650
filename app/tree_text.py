"""A draft tree as plain text: no colour, so that it reads the same in a pipe and on any terminal."""

from collections import Counter
from collections.abc import Sequence

from dart_core.events import Step, TreeView

BAR = 20  # characters of a full bar
ACCEPTED, REJECTED, OWN = "✓", "✗", "→"


def tree_lines(step: Step) -> list[str]:
    """The step's tree, one node a line below a heading.

    `✓` marks accepted nodes, `✗` the others, `→` the token that the target wrote itself. Without a tree in
    the step, or with drafting off, the heading and the target's own token are all there is.
    """
    written = len(step.token_ids)
    lines = [f"{written} token{'s' * (written != 1)} in {step.ms:.1f} ms, tree of {step.tree_size}"]
    tree = step.tree
    if tree is None:
        return [*lines, f"{OWN} {visible(step.own_text)}"]
    lines.append(f"{ACCEPTED} {visible(tree.texts[0])}")
    _add_children(lines, step, tree, 0, "")
    return lines


def shares_by_depth(steps: Sequence[Step]) -> list[tuple[float, int]]:
    """For depths 1, 2, …: which share of the trees that reach it had it right, in [0, 1], and how many reach it."""
    reached: Counter[int] = Counter()
    right: Counter[int] = Counter()
    for step in steps:
        if step.tree is not None:
            reached.update(range(1, max(step.tree.depths) + 1))
            right.update(range(1, len(step.accepted)))
    deepest = min(max(right, default=0) + 1, max(reached, default=0))  # below are only zeros
    return [(right[depth] / reached[depth], reached[depth]) for depth in range(1, deepest + 1)]


def acceptance_by_depth(steps: Sequence[Step]) -> str:
    """Such as "accepted by depth: 62% 40%"; empty where no tree has a draft."""
    shares = [f" {100 * share:.0f}%" for share, _ in shares_by_depth(steps)]
    return f"accepted by depth:{''.join(shares)}" if shares else ""


def acceptance_bars(steps: Sequence[Step]) -> str:
    """The same as bars, a line each."""
    lines = [
        f"{depth} {'█' * round(BAR * share)}{'░' * (BAR - round(BAR * share))} {100 * share:3.0f}% of {reached}"
        for depth, (share, reached) in enumerate(shares_by_depth(steps), 1)
    ]
    return "\n".join(["Accepted by depth", *lines]) if lines else ""


def pieces(step: Step) -> list[tuple[str, bool]]:
    """The tokens that a step with a tree wrote: text, and whether it was drafted."""
    if step.tree is None:
        return []
    drafted = [(step.tree.texts[node], True) for node in step.accepted[1:]]
    own = [(step.own_text, False)] * (len(step.token_ids) > len(drafted))
    return drafted + own


def visible(text: str) -> str:
    """A token in quotes, with signs for what cannot be seen."""
    shown = "".join(SIGNS.get(char, char if char.isprintable() else f"\\x{ord(char):02x}") for char in text)
    return f'"{shown}"'


SIGNS = {"\n": "⏎", "\t": "⇥", "\r": "␍"}


def _add_children(lines: list[str], step: Step, tree: TreeView, node: int, indent: str) -> None:
    accepted = set(step.accepted)
    rows: list[tuple[str, int | None]] = [
        (
            f"{ACCEPTED if child in accepted else REJECTED} {visible(tree.texts[child])}"
            f" {tree.scores[child]:.2f} {tree.sources[child]}",
            child,
        )
        for child in sorted(tree.children(node), key=lambda child: (child not in accepted, -tree.scores[child]))
    ]
    if node == step.accepted[-1]:
        rows.insert(0, (f"{OWN} {visible(step.own_text)}", None))
    for place, (label, child) in enumerate(rows):
        last = place == len(rows) - 1
        lines.append(f"{indent}{'└' if last else '├'}─ {label}")
        if child is not None:
            _add_children(lines, step, tree, child, indent + ("   " if last else "│  "))
