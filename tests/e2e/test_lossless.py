"""The default model: drafting changes speed, never text."""

import json
from pathlib import Path

import pytest
import torch

from dart_core.drafter import NgramDrafter
from dart_core.engine import Engine
from dart_core.events import Failed, Finished, Step
from dart_core.options import GenerateOptions
from dart_core.prompt import encode_prompt
from dart_core.state import new_state
from kernels.learning_table import new_table
from models.decoder import forward, output_logits
from models.resolve import resolve_model
from models.weights import load_target

DATA = Path(__file__).parent.parent / "data"
PROMPTS = [json.loads(line)["prompt"] for line in (DATA / "bench_prompts.jsonl").read_text().splitlines()]
EDIT = (
    "Copy the following text and correct its spelling:\n\n"
    "The quick brown cat jumps over the lazy dog near the rivr bank. The dog sleeps in the warm afternon sun, and the "
    "cat watches the birds above the old stone bridge while the water flows slowly to the distant sea."
)


def reply(engine: Engine, prompt: str, options: GenerateOptions) -> tuple[list[int], Finished]:
    """Token ids and figures of one reply by a drafter that has learnt nothing yet and an empty cache."""
    engine.close()
    engine.drafter = NgramDrafter(new_table())
    tokens: list[int] = []
    for event in engine.generate(prompt, options):
        assert not isinstance(event, Failed), event
        if isinstance(event, Step):
            tokens += event.token_ids
        if isinstance(event, Finished):
            return tokens, event
    raise AssertionError("no Finished event")


@pytest.mark.e2e
@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_twenty_prompts_greedy_and_sampled_at_every_size(engine: Engine, index: int) -> None:
    for temperature in (0.0, 0.8):
        common = {"max_new_tokens": 200, "temperature": temperature, "seed": 7}
        plain, _ = reply(engine, PROMPTS[index], GenerateOptions(draft=False, **common))  # type: ignore[arg-type]
        for size in (4, 16, 64):
            drafted, _ = reply(engine, PROMPTS[index], GenerateOptions(tree_size=size, **common))  # type: ignore[arg-type]
            assert drafted == plain, f"tree size {size}, temperature {temperature}"


@pytest.mark.e2e
def test_drafting_from_the_prompt_really_drafts(engine: Engine) -> None:
    plain, _ = reply(engine, EDIT, GenerateOptions(max_new_tokens=120, draft=False, temperature=0))
    drafted, finished = reply(engine, EDIT, GenerateOptions(max_new_tokens=120, temperature=0))
    assert drafted == plain
    assert finished.usage.tau > 1.2
    assert finished.usage.steps < len(plain)


@pytest.mark.e2e
def test_a_reused_cache_gives_the_text_of_a_fresh_one(engine: Engine) -> None:
    options = GenerateOptions(max_new_tokens=60, temperature=0.7, seed=3)
    first, _ = reply(engine, PROMPTS[0], options)
    conversation = [
        {"role": "user", "content": PROMPTS[0]},
        {"role": "assistant", "content": engine.tokenizer.decode(first, skip_special_tokens=True)},
        {"role": "user", "content": "Say that in one sentence."},
    ]
    texts = []
    for _ in range(2):
        tokens: list[int] = []
        reused = -1
        for event in engine.generate(conversation, options):
            if isinstance(event, Step):
                tokens += event.token_ids
            if isinstance(event, Finished):
                reused = event.timings.cache_n
        texts.append((tokens, reused))
        engine.close()
    assert texts[0][0] == texts[1][0]
    assert texts[0][1] > 60
    assert texts[1][1] == 0


@pytest.mark.e2e
def test_unquantised_weights_write_what_transformers_writes(engine: Engine) -> None:
    """Greedy text is each position's argmax: checked for 10 × 200 tokens that transformers wrote in fp32."""
    golden = json.loads((DATA / "greedy_fp32.json").read_text())
    target = load_target(resolve_model("default"), "fp32", torch.device("cpu"))
    state = new_state(target.config, 1024, torch.device("cpu"))
    for prompt, text in zip(PROMPTS[::2], golden["texts"], strict=True):
        assert encode_prompt(engine.tokenizer, prompt) == text["prompt"]
        tokens = torch.tensor(text["prompt"] + text["reply"])
        choices = []
        state.length.zero_()
        for chunk in tokens.split(64):
            rows = torch.arange(len(chunk))
            hidden, _ = forward(target, state.cache, chunk, rows, (2 << rows) - 1, state.length)
            choices.append(output_logits(target, hidden).argmax(-1))
            state.length.add_(len(chunk))
        before = len(text["prompt"]) - 1
        assert torch.cat(choices)[before:-1].tolist() == text["reply"]
