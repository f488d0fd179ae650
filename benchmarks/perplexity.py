"""Perplexity of the default model in 4 bits against the same file in fp32, on the same tokens.

    python -m benchmarks.perplexity TEXT… --tokens 20000

Texts are cut into windows of 1,024 tokens; the first of a window is not predicted.
"""

import argparse
import math
from pathlib import Path

import torch

from dart_core.state import new_state
from kernels import native
from models.decoder import Target, forward, output_logits
from models.resolve import resolve_model
from models.tokenizer import load_tokenizer
from models.weights import load_target

WINDOW = 1024


def perplexity(target: Target, windows: list[torch.Tensor]) -> float:
    """exp of the mean negative log-likelihood of all but the first token of each window."""
    state = new_state(target.config, WINDOW, torch.device("cpu"))
    total, count = 0.0, 0
    for window in windows:
        state.length.zero_()
        logits = []
        for chunk in window.split(64):
            rows = torch.arange(len(chunk))
            hidden, _ = forward(target, state.cache, chunk, rows, (2 << rows) - 1, state.length)
            logits.append(output_logits(target, hidden))
            state.length.add_(len(chunk))
        likelihood = torch.cat(logits)[:-1].log_softmax(-1).gather(1, window[1:, None])
        total -= float(likelihood.double().sum())
        count += len(window) - 1
    return math.exp(total / count)


def main() -> None:
    """Prints both perplexities and their ratio."""
    parser = argparse.ArgumentParser(description="perplexity in 4 bits against fp32")
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--model", default="default")
    arguments = parser.parse_args()
    files = resolve_model(arguments.model)
    tokenizer = load_tokenizer(files.directory)
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in arguments.texts)
    tokens = torch.tensor(tokenizer.encode(text)[: arguments.tokens])
    windows = [window for window in tokens.split(WINDOW) if len(window) > 1]
    results = {}
    for weights in ("fp32", "4bit"):
        results[weights] = perplexity(load_target(files, weights, torch.device("cpu")), windows)
        print(f"{weights:5} perplexity {results[weights]:.4f}", flush=True)
    print(f"{len(tokens)} tokens, kernels {native.status().path}: {results['4bit'] / results['fp32'] - 1:+.2%}")


if __name__ == "__main__":
    main()
