"""Draft trees as text."""

from app.tree_text import acceptance_bars, acceptance_by_depth, pieces, tree_lines, visible
from dart_core.events import Step, TreeView

TREE = TreeView(
    token_ids=(1, 2, 3, 4, 5),
    texts=("The", " cat", " dog", " sat", "\n"),
    parents=(-1, 0, 0, 1, 1),
    depths=(0, 1, 1, 2, 2),
    scores=(1.0, 0.8, 0.9, 0.25, 0.5),
    sources=("root", "head", "ngram", "head", "ngram"),
)


def test_accepted_nodes_come_first_and_the_targets_own_token_stands_where_it_was_written():
    step = Step(8, (0, 1), (2, 9), " ran", 12.34, 40, TREE)
    assert tree_lines(step) == [
        "2 tokens in 12.3 ms, tree of 8",
        '✓ "The"',
        '├─ ✓ " cat" 0.80 head',
        '│  ├─ → " ran"',
        '│  ├─ ✗ "⏎" 0.50 ngram',
        '│  └─ ✗ " sat" 0.25 head',
        '└─ ✗ " dog" 0.90 ngram',
    ]


def test_nothing_accepted():
    lines = tree_lines(Step(8, (0,), (9,), " ran", 1.0, 40, TREE))
    assert lines[:3] == ["1 token in 1.0 ms, tree of 8", '✓ "The"', '├─ → " ran"']
    assert sum("✓" in line for line in lines) == 1
    assert len(lines) == 2 + 4 + 1


def test_a_step_without_a_tree_shows_what_was_written():
    assert tree_lines(Step(1, (0,), (9,), " ran", 1.0, 40)) == ["1 token in 1.0 ms, tree of 1", '→ " ran"']


def test_a_token_cannot_steer_the_terminal():
    assert visible("\x1b[2J\t\r\n é日👋") == '"\\x1b[2J⇥␍⏎ é日👋"'


def test_acceptance_by_depth_counts_only_the_trees_that_reach_it():
    short = TreeView((1, 2), ("The", " cat"), (-1, 0), (0, 1), (1.0, 0.8), ("root", "head"))
    steps = [
        Step(8, (0, 1, 3), (2, 4, 9), " ran", 1.0, 40, TREE),
        Step(8, (0,), (9,), " ran", 1.0, 41, TREE),
        Step(4, (0, 1), (2, 9), " ran", 1.0, 43, short),
        Step(1, (0,), (9,), " ran", 1.0, 44),
    ]
    assert acceptance_by_depth(steps) == "accepted by depth: 67% 50%"
    assert acceptance_by_depth(steps[3:]) == ""


def test_what_a_step_wrote_by_who_guessed_it():
    assert pieces(Step(8, (0, 1), (2, 9), " ran", 12.34, 40, TREE)) == [(" cat", True), (" ran", False)]
    assert pieces(Step(8, (0, 1), (2,), "", 12.34, 40, TREE)) == [(" cat", True)]
    assert pieces(Step(8, (0, 1), (2, 9), " ran", 12.34, 40)) == []


def test_acceptance_as_bars():
    step = Step(8, (0, 1), (2, 9), " ran", 12.34, 40, TREE)
    other = Step(8, (0,), (9,), " ran", 12.34, 40, TREE)
    assert acceptance_bars([step, other]).splitlines()[1:] == [
        "1 ██████████░░░░░░░░░░  50% of 2",
        "2 ░░░░░░░░░░░░░░░░░░░░   0% of 2",
    ]
    assert acceptance_bars([]) == ""
