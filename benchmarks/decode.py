"""Whole-engine decoding, plain and drafted, against llama.cpp on the same file, prompt tokens and threads.

    python -m benchmarks.decode --max-new-tokens 256 --rounds 3 --json out.json

Every round runs the engines one after another on each prompt, greedily, so that a slow minute of the machine
hits all of them. Speeds leave the prompt out. llama.cpp takes part where llama-cpp-python is installed.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dart_core.drafter import NgramDrafter
from dart_core.engine import Engine
from dart_core.events import Failed, Finished
from dart_core.options import EngineOptions, GenerateOptions
from dart_core.prompt import encode_prompt
from kernels import native
from kernels.learning_table import new_table
from models.resolve import resolve_model

Run = Callable[[str], tuple[float, float]]  # prompt → tokens a second, τ
PROMPTS = Path(__file__).parent.parent / "tests" / "data" / "bench_prompts.jsonl"


def ours(engine: Engine, options: GenerateOptions) -> Run:
    """Our engine, each prompt with a drafter that has learnt nothing and an empty cache."""

    def run(prompt: str) -> tuple[float, float]:
        engine.close()
        if isinstance(engine.drafter, NgramDrafter):
            engine.drafter = NgramDrafter(new_table())
        for event in engine.generate(prompt, options):
            if isinstance(event, Failed):
                raise SystemExit(f"error: {event.error}")
            if isinstance(event, Finished):
                return event.timings.predicted_per_second, event.usage.tau
        raise AssertionError

    return run


def llama_cpp(path: Path, engine: Engine, new_tokens: int, threads: int) -> Run | None:
    """llama-cpp-python, greedy, on the same file; None where it is not installed."""
    try:
        from llama_cpp import Llama  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    model: Any = Llama(str(path), n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)

    def run(prompt: str) -> tuple[float, float]:
        model.reset()
        written, started = 0, 0.0
        for token in model.generate(encode_prompt(engine.tokenizer, prompt), temp=0.0, repeat_penalty=1.0):
            if not written:
                started = time.perf_counter()  # after the prompt
            written += 1
            if token in engine.eos or written == new_tokens:
                break
        return (written - 1) / max(time.perf_counter() - started, 1e-9), 1.0

    return run


def main() -> None:
    """Prints a table by data set and writes the figures where asked to."""
    parser = argparse.ArgumentParser(description="decoding speed, alternating engines")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tree-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    engine = Engine.open(EngineOptions(context=2048, threads=arguments.threads))
    common = {"max_new_tokens": arguments.max_new_tokens, "temperature": 0.0}
    engines: dict[str, Run] = {
        "plain": ours(engine, GenerateOptions(draft=False, **common)),
        "drafted": ours(engine, GenerateOptions(tree_size=arguments.tree_size, **common)),
    }
    theirs = llama_cpp(resolve_model("default").weights, engine, arguments.max_new_tokens, arguments.threads)
    if theirs is None:
        print("llama-cpp-python is not installed: left out", file=sys.stderr)
    else:
        engines["llama.cpp"] = theirs

    prompts = [json.loads(line) for line in arguments.prompts.read_text(encoding="utf-8").splitlines()]
    speeds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    taus: dict[str, list[float]] = defaultdict(list)
    for run in engines.values():
        run(prompts[0]["prompt"])  # warms up
    for _ in range(arguments.rounds):
        for row in prompts:
            for name, run in engines.items():
                speed, tau = run(row["prompt"])
                speeds[row["set"]][name].append(speed)
                if name == "drafted":
                    taus[row["set"]].append(tau)
    report(engines, speeds, taus, arguments)


def report(
    engines: dict[str, Run], speeds: dict[str, dict[str, list[float]]], taus: dict[str, list[float]], arguments: Any
) -> None:
    """Medians by data set, and their ratios."""
    print(f"{platform.processor() or platform.machine()}, {arguments.threads} threads, torch {torch.__version__}, "
          f"kernels {native.status().path}, {time.strftime('%Y-%m-%d %H:%M')}")  # fmt: skip
    print(f"{'set':10}" + "".join(f"{name:>12}" for name in engines) + f"{'τ':>8}")
    medians = {
        dataset: {name: statistics.median(values) for name, values in by_name.items()}
        for dataset, by_name in speeds.items()
    }
    for dataset, row in medians.items():
        print(
            f"{dataset:10}"
            + "".join(f"{row[name]:12.1f}" for name in engines)
            + f"{statistics.mean(taus[dataset]):8.2f}"
        )
    overall = {name: statistics.median(v for by in speeds.values() for v in by[name]) for name in engines}
    print(f"{'all':10}" + "".join(f"{overall[name]:12.1f}" for name in engines))
    if arguments.json:
        result = {"medians": medians, "tau": {k: statistics.mean(v) for k, v in taus.items()}, "speeds": speeds}
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
