"""Build, merge, import and look into n-gram models: `python -m dart_core.ngram --help`."""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from dart_core.ngram.build import build_ngram, merge_ngrams
from dart_core.ngram.model import load_ngram
from dart_core.ngram.texts import load_tokenizer, token_streams
from dart_core.ngram.trie import import_trie
from kernels.ngram_lookup import NgramTable, context_key, find_contexts, key_context, ngram_lookup
from models.errors import DartError, UsageError


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; the exit code: 0, or that of the error it tells on stderr."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except DartError as error:
        print(f"{error.cause}\n{error.hint}".strip(), file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"The model cannot be written: {error}", file=sys.stderr)
        return DartError.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dart_core.ngram", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    build = commands.add_parser("build", help="count the n-grams of text, .jsonl or .parquet files")
    build.add_argument("files", nargs="+", type=Path)
    build.add_argument("--tokenizer", help="model directory, .gguf file or hub name; not needed for token ids")
    build.add_argument("--order", type=_positive, default=3, help="longest n-gram, 2 to 5 (default 3)")

    merge = commands.add_parser("merge", help="add up the counts of models")
    merge.add_argument("files", nargs="+", type=Path)

    imported = commands.add_parser("import", help="turn a published .trie file into a model")
    imported.add_argument("file", type=Path)
    for writer in (build, merge, imported):
        writer.add_argument("--out", type=Path, required=True, help="the model file to write")
        writer.add_argument("--max-entries", type=_positive, help="keep only the pairs seen most often")

    inspect = commands.add_parser("inspect", help="what a model holds")
    lookup = commands.add_parser("lookup", help="what follows a text, most frequent first")
    for reader in (inspect, lookup):
        reader.add_argument("model", type=Path)
        reader.add_argument("--tokenizer", help="to read and write text in place of token ids")
        reader.add_argument("--top", type=_positive, default=10, help="lines to show (default 10)")
    lookup.add_argument("text", help="text, or token ids where there is no tokenizer")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _run(options: argparse.Namespace) -> None:
    tokenizer = load_tokenizer(options.tokenizer) if getattr(options, "tokenizer", None) else None
    match options.command:
        case "build":
            streams = token_streams(options.files, tokenizer)
            build_ngram(streams, options.order, options.out, options.max_entries)
        case "merge":
            merge_ngrams(options.files, options.out, options.max_entries)
        case "import":
            import_trie(options.file, options.out, options.max_entries, _show_progress)
        case "inspect":
            _inspect(load_ngram(options.model), tokenizer, options.top)
            return
        case "lookup":
            _lookup(load_ngram(options.model), options.text, tokenizer, options.top)
            return
    print(_summary(load_ngram(options.out)))


def _show_progress(fraction: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{fraction:4.0%}", end="" if fraction < 1 else "\r", file=sys.stderr, flush=True)


def _summary(table: NgramTable) -> str:
    size = table.nbytes / len(table.token)
    return (
        f"order {table.order}: {len(table.token):,} pairs of {len(table.context):,} contexts, "
        f"{table.nbytes / 1e6:,.1f} MB, {size:.1f} bytes a pair"
    )


def _inspect(table: NgramTable, tokenizer: Any, top: int) -> None:
    print(_summary(table))
    lengths = torch.bincount(table.context & 3, minlength=4).tolist()
    for length, contexts in enumerate(lengths[: table.order - 1], start=1):
        print(f"  contexts of {length}: {contexts:,}")
    place = table.total.topk(min(top, len(table.total))).indices.tolist()
    for row in place:
        context = key_context(int(table.context[row]))
        name = _text(context, tokenizer) if context is not None else "(four tokens)"
        print(f"  {int(table.total[row]):>10,} × {name}")


def _lookup(table: NgramTable, text: str, tokenizer: Any, top: int) -> None:
    """The likeliest tokens after `text`, of the longest context that was seen first."""
    if tokenizer is not None:
        tokens = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    else:
        try:
            tokens = [int(word) for word in text.replace(",", " ").split()]
        except ValueError as error:
            raise UsageError(f"{text!r} is not token ids", "Add --tokenizer, or give numbers") from error
    if not tokens:
        raise UsageError("There is nothing to look up", "Give some text")
    context = torch.tensor([tokens])
    following = []
    for length in range(min(table.order - 1, len(tokens)), 0, -1):
        row, known = find_contexts(table, context_key(context[:, -length:]))
        if bool(known):
            start, end = int(table.first[int(row)]), int(table.first[int(row) + 1])
            following += table.token[start:end].tolist()
    if not following:
        print("No context of it was seen.")
        return
    candidates = torch.tensor(sorted(set(following)))
    q, matched = ngram_lookup(table, context, candidates[None])
    best = (matched[0] + q[0]).sort(descending=True, stable=True).indices[:top].tolist()
    for i in best:
        name = _text([int(candidates[i])], tokenizer)
        print(f"  {float(q[0, i]):.4f}  after {int(matched[0, i])} tokens: {name}")


def _text(tokens: list[int], tokenizer: Any) -> str:
    return repr(tokenizer.decode(tokens)) if tokenizer is not None else " ".join(map(str, tokens))


if __name__ == "__main__":
    sys.exit(main())
