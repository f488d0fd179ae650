"""Train a draft head: `python -m dart_core.train distill | head | ngram | eval | export --help`."""

import argparse
import sys
from pathlib import Path

import torch

from models.errors import DartError


def main(arguments: list[str] | None = None) -> int:
    """Runs one stage; the exit code: 0, or that of the error it tells on stderr."""
    options = _parser().parse_args(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        options.run(options)
    except DartError as error:
        print(f"error: {error.cause}\n  try: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dart_core.train", description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)

    distill = stages.add_parser("distill", help="let the target write conversations to learn from")
    distill.add_argument(
        "--prompts", nargs="*", type=Path, default=[], help='.jsonl files of {"turns": [text, …]}; first turns count'
    )
    distill.add_argument("--samples", type=int, default=1, help="replies to each prompt (default 1)")
    distill.add_argument("--magpie", type=int, default=0, help="conversations with user turns of the target's own")
    distill.add_argument("--temperature", type=float, default=0.7)
    distill.add_argument("--max-new-tokens", type=int, default=320)
    distill.add_argument("--batch", type=int, default=32, help="conversations written together (default 32)")
    distill.add_argument("--tokens", type=int, help="stop after about so many tokens of replies")
    distill.add_argument("--seed", type=int, default=0)
    distill.add_argument("--out", type=Path, required=True, help="directory of shards; what it holds is kept")
    distill.set_defaults(run=_distill)

    for stage in stages.choices.values():
        stage.add_argument("--model", default="default", help="the target: directory, .gguf file or cached hub id")
        stage.add_argument("--threads", type=int, help="CPU threads")
    return parser


def _distill(options: argparse.Namespace) -> None:
    from dart_core.train.conversations import read_prompts
    from dart_core.train.distill import DistillOptions, distill
    from dart_core.train.open_target import open_target

    target, tokenizer, eos = open_target(options.model)
    settings = DistillOptions(
        options.samples,
        options.magpie,
        options.temperature,
        options.max_new_tokens,
        options.batch,
        options.tokens,
        options.seed,
    )
    with torch.inference_mode():
        distill(target, tokenizer, eos, read_prompts(options.prompts), options.out, settings)


if __name__ == "__main__":
    sys.exit(main())
