"""Conversations on disk: safetensors shards of token ids, written once each and never changed."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from models.errors import ModelError, UsageError


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt as the target reads it and the reply it wrote; `number` is its place in the list of jobs."""

    number: int
    prompt: list[int]
    reply: list[int]

    @property
    def tokens(self) -> list[int]:
        """The whole text."""
        return self.prompt + self.reply


def write_shard(directory: Path, conversations: list[Conversation]) -> Path:
    """The next shard of `directory`; it appears whole or not at all."""
    taken = [int(path.stem.split("-")[1]) for path in shards(directory)]
    path = directory / f"shard-{max(taken, default=-1) + 1:05d}.safetensors"
    sizes = [(c.number, len(c.prompt), len(c.reply)) for c in conversations]
    tokens = [token for c in conversations for token in c.tokens]
    partial = path.with_suffix(".part")
    save_file({"sizes": torch.tensor(sizes), "tokens": torch.tensor(tokens, dtype=torch.int32)}, partial)
    os.replace(partial, path)
    return path


def shards(directory: Path) -> list[Path]:
    """The shards of a directory, in the order they were written."""
    return sorted(directory.glob("shard-*.safetensors"))


def read_shard(path: Path) -> list[Conversation]:
    """Raises ModelError where the file is not a shard."""
    try:
        with safe_open(path, framework="pt") as file:
            sizes, tokens = file.get_tensor("sizes").tolist(), file.get_tensor("tokens").tolist()
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}", "delete it; distill writes the rest again") from error
    found, start = [], 0
    for number, prompt, reply in sizes:
        middle, end = start + prompt, start + prompt + reply
        found.append(Conversation(number, tokens[start:middle], tokens[middle:end]))
        start = end
    return found


def read_conversations(directories: Iterable[Path]) -> Iterator[Conversation]:
    """All conversations of all shards. Raises UsageError where there are none."""
    paths = [path for directory in directories for path in shards(directory)]
    if not paths:
        raise UsageError("there are no conversations to train on", "write some: python -m dart_core.train distill")
    for path in paths:
        yield from read_shard(path)


def read_prompts(files: Iterable[Path]) -> list[list[str]]:
    """The user turns of JSON-lines files: rows {"turns": [text, …]} or {"prompt": text}. Raises UsageError."""
    prompts = []
    for path in files:
        try:
            with path.open(encoding="utf-8") as file:
                rows = [json.loads(line) for line in file if line.strip()]
            prompts += [list(row["turns"]) if "turns" in row else [row["prompt"]] for row in rows]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} holds no prompts: {error!r}", 'rows are {"turns": ["text"]}') from error
    return prompts
