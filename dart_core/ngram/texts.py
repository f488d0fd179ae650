"""Token streams from files: text, JSON lines, parquet."""

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from models.errors import ModelError, UsageError

_PIECE = 1 << 20  # characters of a text file tokenised at a time
_BATCH = 256  # documents tokenised at a time
_TEXT_FIELDS = ("text", "content", "prompt", "instruction", "completion", "answer", "response", "output")
_CHAT_FIELDS = ("messages", "conversations", "turns")


def load_tokenizer(name: str) -> Any:
    """The transformers tokenizer of a directory, a .gguf file or a hub name. Raises ModelError."""
    from transformers import AutoTokenizer

    path = Path(name)
    try:
        if path.suffix == ".gguf":
            return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ModelError(f"{name} has no tokenizer: {error}", "Give a model directory or a .gguf file") from error


def token_streams(files: Iterable[Path], tokenizer: Any) -> Iterator[list[int]]:
    """The documents of `files` as token ids.

    The rows of `.jsonl` and `.parquet` files are documents: `tokens` (ids; `tokenizer` may be None), a chat
    (`messages`, by the tokenizer's template) or text fields. Other files are text, in pieces of a megabyte.
    Raises UsageError where a file cannot be read so.
    """
    documents = (document for file in files for document in _documents(file))
    while group := list(islice(documents, _BATCH)):
        yield from (document for document in group if _is_tokens(document))
        texts = [document for document in group if not _is_tokens(document)]
        if not texts:
            continue
        if tokenizer is None:
            raise UsageError("Text needs a tokenizer", "Add --tokenizer MODEL_DIRECTORY")
        plain = [
            text if isinstance(text, str) else tokenizer.apply_chat_template(text, tokenize=False) for text in texts
        ]
        yield from tokenizer(plain, add_special_tokens=False)["input_ids"]


def _is_tokens(document: Any) -> bool:
    return isinstance(document, list) and all(isinstance(token, int) for token in document)


def _documents(path: Path) -> Iterator[Any]:
    try:
        if path.suffix == ".parquet":
            rows = _parquet_rows(path)
        elif path.suffix == ".jsonl":
            rows = _json_rows(path)
        else:
            yield from _text_pieces(path)
            return
        for number, row in enumerate(rows, start=1):
            yield _row_document(row, f"row {number} of {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "Give UTF-8 text, .jsonl or .parquet files") from error


def _text_pieces(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        while piece := file.read(_PIECE):
            yield piece + file.readline(_PIECE)


def _json_rows(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UsageError(f"Line {number} of {path} is not JSON: {error}", "Check the file") from error


def _parquet_rows(path: Path) -> Iterator[Any]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError(f"{path} needs pyarrow", "Type: pip install pyarrow") from error
    for batch in parquet.ParquetFile(path).iter_batches(_BATCH):
        yield from batch.to_pylist()


def _row_document(row: Any, where: str) -> Any:
    """A row's tokens (list of int), chat (list of messages) or text."""
    if _is_tokens(row) or isinstance(row, str):
        return row
    if isinstance(row, dict):
        if _is_tokens(row.get("tokens")):
            return row["tokens"]
        for field in _CHAT_FIELDS:
            if isinstance(row.get(field), list):
                return [_message(message, i, where) for i, message in enumerate(row[field])]
        texts = [row[field] for field in _TEXT_FIELDS if isinstance(row.get(field), str)]
        if texts:
            return "\n".join(texts)
    fields = ", ".join(("tokens", *_CHAT_FIELDS, *_TEXT_FIELDS))
    raise UsageError(f"There is no text in {where}", f"A row needs one of the fields {fields}")


def _message(message: Any, index: int, where: str) -> dict[str, str]:
    """A chat message as {role, content}, from that, from ShareGPT's {from, value} or from a plain string."""
    if isinstance(message, str):
        return {"role": ("user", "assistant")[index % 2], "content": message}
    if isinstance(message, dict):
        role = {"human": "user", "gpt": "assistant"}.get(str(message.get("from")), message.get("role"))
        content = message.get("content", message.get("value"))
        if isinstance(role, str) and isinstance(content, str):
            return {"role": role, "content": content}
    raise UsageError(f"Message {index + 1} in {where} has no role and content", "Check the file")
