"""What a caller may choose, for an engine and for one generation. Plain values: no torch here."""

from dataclasses import dataclass

TREE_SIZES = (1, 4, 8, 16, 24, 32, 48, 64)  # rows of a draft tree, root included: the step exists for these


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to open a model.

    `model`: "default", "fake:…", a directory, a .gguf file, or a hub id that is in the local cache.
    `context`: tokens of KV cache; None takes what the model allows, at most 8192.
    `weights`: "4bit", or "fp32" to keep every weight as it is in the file.
    `threads`: CPU threads; None leaves torch's choice.
    `drafter`: "auto" takes the model's draft head, or what the conversation has said where there is none;
    "off" decodes plainly.
    `head`: a draft head's directory or cached hub id; None takes the one the catalog knows, "none" takes none.
    `ngram`: an n-gram model's file, directory or cached hub id, to score what the head proposes.
    """

    model: str = "default"
    context: int | None = None
    weights: str = "4bit"
    threads: int | None = None
    device: str = "auto"
    drafter: str = "auto"
    head: str | None = None
    ngram: str | None = None

    def __post_init__(self) -> None:
        if self.weights not in ("4bit", "fp32"):
            raise ValueError(f"weights must be 4bit or fp32, not {self.weights!r}")
        if self.drafter not in ("auto", "off"):
            raise ValueError(f"drafter must be auto or off, not {self.drafter!r}")
        if self.context is not None and self.context < 2:
            raise ValueError(f"context must be at least 2 tokens, not {self.context}")


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """How to write one reply. None means: as the model's generation_config says, else plainly greedy.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 switch that filter off. The filters apply in the
    order top-k, top-p, min-p, in fp32, after temperature and repetition penalty. `seed` fixes the noise, so a
    seed gives one text whatever the draft. `tree_size` is the largest draft tree, root included. `show_tree` puts
    the tree into every `Step`. `raw` gives a prompt string to the model as it is, without the chat template.
    """

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    draft: bool = True
    tree_size: int = 16
    show_tree: bool = False
    raw: bool = False

    def __post_init__(self) -> None:
        checks = (
            ("max_new_tokens", self.max_new_tokens, 1, None),
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_k", self.top_k, 0, None),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 1e-3, 100.0),
            ("seed", self.seed, 0, 2**63 - 1),
        )
        for name, value, low, high in checks:
            if value is not None and not (value >= low and (high is None or value <= high)):
                raise ValueError(f"{name} must be {low} or more{f' and at most {high}' if high else ''}, not {value}")
        if self.tree_size not in TREE_SIZES:
            raise ValueError(f"tree_size must be one of {', '.join(map(str, TREE_SIZES))}, not {self.tree_size}")
        if any(not text for text in self.stop):
            raise ValueError("a stop string must not be empty")
