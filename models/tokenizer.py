"""Tokenizer, end-of-text tokens and sampling defaults of a model directory, by transformers."""

import json
from pathlib import Path
from typing import Any

from models.config import in_short
from models.errors import ModelError

_FILE = "generation_config.json"


def load_tokenizer(directory: Path) -> Any:
    """transformers' fast tokenizer. Raises ModelError where there is none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, use_fast=True)
    except Exception as error:  # transformers raises nearly anything here
        raise ModelError(
            f"no tokenizer can be read in {directory}: {in_short(error)}", "download the model again"
        ) from error
    if not tokenizer.is_fast:
        raise ModelError(f"{directory} has no fast tokenizer (tokenizer.json)", "convert it with transformers")
    return tokenizer


def eos_ids(directory: Path, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a reply: generation_config's eos (one or several), the tokenizer's, the template's."""
    found = _generation_config(directory).get("eos_token_id")
    ids = {found} if isinstance(found, int) else set(found or ())
    ids.add(tokenizer.eos_token_id)
    ids.add(turn_end(tokenizer))
    return frozenset(i for i in ids if i is not None)


def turn_end(tokenizer: Any) -> int | None:
    """The special token the chat template writes right after an assistant's message, if it does."""
    if not tokenizer.chat_template:
        return None
    marker = "reply"
    conversation = [{"role": "user", "content": "question"}, {"role": "assistant", "content": marker}]
    try:
        text = tokenizer.apply_chat_template(conversation, tokenize=False)
    except Exception:  # a template may refuse such a short conversation; then it tells us nothing
        return None
    after = text[text.rindex(marker) + len(marker) :].lstrip() if marker in text else ""
    special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    longest = max((text for text in special if text and after.startswith(text)), key=len, default=None)
    return None if longest is None else int(special[longest])


def generation_defaults(directory: Path) -> dict[str, float]:
    """Sampling settings of generation_config.json; without do_sample the model is greedy: temperature 0."""
    config = _generation_config(directory)
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    try:
        defaults = {name: float(config[name]) for name in names if config.get(name) is not None}
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{directory / _FILE} has a setting that is no number: {error}", "mend or delete it"
        ) from error
    if config.get("do_sample"):
        # transformers' own defaults, which a file that samples relies on when it is silent.
        return {"temperature": 1.0, "top_k": 50.0, **defaults}
    penalty = defaults.get("repetition_penalty", 1.0)
    return {"temperature": 0.0, "repetition_penalty": penalty}


def _generation_config(directory: Path) -> dict[str, Any]:
    path = directory / _FILE
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is not readable JSON: {error}", "mend or delete it") from error
    return config if isinstance(config, dict) else {}
