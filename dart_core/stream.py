"""The engine as a command: `python -m dart_core.stream "prompt"` writes the reply to stdout as it comes.

The prompt is the argument, standard input, or both (argument first). stdout carries the reply alone, or with
--json one event a line; everything else goes to stderr. Exit codes: 0 written (or the reader closed the pipe),
1 generation failed, 2 wrong usage, 3 the model cannot be loaded, 130 interrupted.
"""

import argparse
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence

from dart_core.events import Delta, Event, Failed, Finished, Loading, Prefill, to_json
from dart_core.options import TREE_SIZES, EngineOptions, GenerateOptions

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_MODEL, EXIT_INTERRUPTED = 0, 1, 2, 3, 130


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m dart_core.stream`."""
    parser = argparse.ArgumentParser(
        prog="python -m dart_core.stream",
        description="Write a reply to stdout, token by token.",
        epilog="exit codes: 0 ok, 1 generation failed, 2 usage, 3 model cannot be loaded, 130 interrupted",
    )
    parser.add_argument("prompt", nargs="?", help="what to say; standard input is added after it")
    add_engine_arguments(parser)
    add_generate_arguments(parser)
    parser.add_argument("--system", help="system prompt")
    parser.add_argument("--raw", action="store_true", help="give the prompt to the model without its chat template")
    parser.add_argument("--json", action="store_true", help="one event a line on stdout")
    parser.add_argument("--show-tree", action="store_true", help="add the draft tree to the step events of --json")
    parser.add_argument("--quiet", action="store_true", help="no progress and no figures on stderr")
    return parser


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """--model, --context, --weights, --threads, --head, --ngram."""
    parser.add_argument("--model", default="default", help="directory, .gguf file, cached hub id, or fake:")
    parser.add_argument("--context", type=int, help="tokens of context to keep (default: the model's, at most 8192)")
    parser.add_argument("--weights", choices=("4bit", "fp32"), default="4bit", help="fp32 keeps weights as in the file")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--head", help="draft head: directory or cached hub id; none drafts from n-grams alone")
    parser.add_argument("--ngram", help="n-gram model beside the head: .safetensors file, directory or cached hub id")


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Sampling, limits and drafting."""
    parser.add_argument("--max-new-tokens", type=int, help="stop after this many tokens")
    parser.add_argument("--temperature", type=float, help="0 is greedy (default: the model's generation_config)")
    parser.add_argument("--top-k", type=int, help="0 is off")
    parser.add_argument("--top-p", type=float, help="1 is off")
    parser.add_argument("--min-p", type=float, help="0 is off")
    parser.add_argument("--repetition-penalty", type=float, help="1 is off")
    parser.add_argument("--seed", type=int, default=0, help="the same seed writes the same text")
    parser.add_argument("--stop", action="append", default=[], help="stop before this text (may be repeated)")
    parser.add_argument(
        "--draft", choices=("on", "off"), default="on", help="off decodes plainly; the text is the same"
    )
    parser.add_argument(
        "--tree-size",
        type=int,
        default=16,
        choices=TREE_SIZES,
        metavar="N",
        help=f"one of {TREE_SIZES}; default 16",
    )


def generate_options(arguments: argparse.Namespace) -> GenerateOptions:
    """The options that `add_generate_arguments` parsed. Raises ValueError where one is out of range."""
    return GenerateOptions(
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        seed=arguments.seed,
        stop=tuple(arguments.stop),
        draft=arguments.draft == "on",
        tree_size=arguments.tree_size,
        show_tree=arguments.show_tree,
        raw=arguments.raw,
    )


def read_prompt(argument: str | None) -> str:
    """The argument, standard input where it is piped, or both with an empty line between."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    return "\n\n".join(part for part in (argument, piped) if part and part.strip())


def write_events(events: Iterable[Event], as_json: bool, quiet: bool) -> int:
    """Writes events as they come; returns the exit code."""
    for event in events:
        if as_json:
            print(json.dumps(to_json(event), ensure_ascii=False), flush=True)
        elif isinstance(event, Delta):
            print(event.text, end="", flush=True)
        if isinstance(event, Failed):
            report(event)
            return event.exit_code
        if isinstance(event, Prefill) and event.dropped and event.done == event.total and not quiet:
            print(f"the {event.dropped} oldest messages did not fit the context", file=sys.stderr)
        if isinstance(event, Finished):
            if not as_json:
                print(flush=True)
            if not quiet:
                print(figures(event), file=sys.stderr)
    return EXIT_OK


def figures(event: Finished) -> str:
    """One line about a finished reply."""
    timings, usage = event.timings, event.usage
    return (
        f"{timings.predicted_n} tokens, {timings.predicted_per_second:.1f} tok/s, τ {usage.tau:.2f}; "
        f"prompt {usage.prompt_tokens} tokens in {timings.prompt_ms:.0f} ms; {event.reason}"
    )


def report(failure: Failed) -> None:
    """The cause and the next step, on stderr."""
    print(f"error: {failure.error}", file=sys.stderr)
    if failure.hint:
        print(f"  try: {failure.hint}", file=sys.stderr)


def show_loading(event: Loading) -> None:
    """Progress on a terminal's stderr, on one line."""
    if sys.stderr.isatty():
        done = "" if event.fraction is None else f" {event.fraction:4.0%}"
        end = "\r\033[K" if event.stage == "ready" else ""
        print(f"\r\033[K{event.stage}{done}", end=end, file=sys.stderr, flush=True)


def run(argv: Sequence[str] | None = None) -> int:
    """Parses, opens the model, streams; returns the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.show_tree and not arguments.json:
        parser.error("--show-tree needs --json here; dart-chat --show-tree draws it")
    try:
        engine_options = EngineOptions(
            model=arguments.model,
            context=arguments.context,
            weights=arguments.weights,
            threads=arguments.threads,
            head=arguments.head,
            ngram=arguments.ngram,
        )
        options = generate_options(arguments)
    except ValueError as error:
        parser.error(str(error))
    text = read_prompt(arguments.prompt)
    if not text.strip():
        parser.error('the prompt is empty; try: python -m dart_core.stream "Hello"')
    prompt: str | list[dict[str, str]] = text
    if arguments.system:
        prompt = [{"role": "system", "content": arguments.system}, {"role": "user", "content": text}]

    from dart_core.opening import open_engine
    from models.errors import DartError

    try:
        engine = open_engine(engine_options, (lambda _: None) if arguments.quiet else show_loading)
    except DartError as error:
        report(Failed(error.cause, error.hint, error.exit_code))
        return error.exit_code
    return write_events(engine.generate(prompt, options), arguments.json, arguments.quiet)


def main() -> None:
    """Entry point of `python -m dart_core.stream`."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a prompt with a stray byte is still a prompt
    try:
        code = run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever reads has had enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_OK
    sys.exit(code)


if __name__ == "__main__":
    main()
