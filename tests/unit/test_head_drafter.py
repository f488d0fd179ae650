"""A head in the decode loop: a random one drafts badly, and changes no text."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dart_core.drafter import PlainDrafter
from dart_core.head_drafter import HeadDrafter, new_head_drafter
from dart_core.head_file import load_head
from dart_core.sampling import SamplingSettings
from dart_core.state import rewind
from dart_core.step import prefill, resume
from models.decoder import Target
from tests.random_target import random_target, write

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
VOCAB, HIDDEN, DRAFT_VOCAB = 64, 64, 40


def random_head(path: Path, target: Target, seed: int = 0) -> HeadDrafter:
    """A head of random weights in the published format, fitting `target`."""
    path.mkdir(exist_ok=True)
    noise = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=noise) / columns**0.5

    config = {
        "hidden_size": HIDDEN, "vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "draft_length": 7,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None, "max_position_embeddings": 256,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    ids = torch.randperm(VOCAB, generator=noise)[:DRAFT_VOCAB].sort().values
    ones = torch.ones(HIDDEN)
    attention, mlp = "midlayer.self_attn.", "midlayer.mlp."
    tensors = {
        "fc.weight": matrix(HIDDEN, 3 * HIDDEN), "midlayer.hidden_norm.weight": ones,
        "midlayer.input_layernorm.weight": ones.clone(), "midlayer.post_attention_layernorm.weight": ones.clone(),
        f"{attention}q_proj.weight": matrix(64, 2 * HIDDEN), f"{attention}k_proj.weight": matrix(32, 2 * HIDDEN),
        f"{attention}v_proj.weight": matrix(32, 2 * HIDDEN), f"{attention}o_proj.weight": matrix(HIDDEN, 64),
        f"{mlp}gate_proj.weight": matrix(96, HIDDEN), f"{mlp}up_proj.weight": matrix(96, HIDDEN),
        f"{mlp}down_proj.weight": matrix(HIDDEN, 96), "midlayer.mask_rep": matrix(1, 2 * HIDDEN)[0],
        "norm.weight": ones.clone(), "lm_head.weight": matrix(DRAFT_VOCAB, HIDDEN),
        "d2t": ids - torch.arange(DRAFT_VOCAB),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True),
    }  # fmt: skip
    save_file(tensors, path / "model.safetensors")
    return new_head_drafter(load_head(path, target), target.embed, 256, frozenset())


@pytest.mark.parametrize("nodes", [4, 16, 64])
@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(),
        SamplingSettings(temperature=0.9, seed=7),
        SamplingSettings(temperature=1.3, top_k=12, top_p=0.9, min_p=0.02, repetition_penalty=1.2, seed=11),
    ],
    ids=["greedy", "sampled", "filtered"],
)
def test_a_random_head_changes_no_text(tmp_path: Path, nodes: int, settings: SamplingSettings) -> None:
    target = random_target()
    plain = write(target, PROMPT, 60, PlainDrafter(), 1, settings)
    drafted = write(target, PROMPT, 60, random_head(tmp_path / "head", target), nodes, settings)
    assert drafted.tokens == plain.tokens
    if nodes == 64:
        assert len(drafted.counts) < 60, "64 nodes of 40 tokens are right now and then"


def test_the_heads_cache_follows_the_conversation(tmp_path: Path) -> None:
    """After drafting, after a pause, after a rewind: the head drafts what one that read the text afresh drafts."""
    target = random_target()
    used = random_head(tmp_path / "head", target)
    written = write(target, PROMPT, 100, used, 16)
    text = PROMPT + written.tokens
    length = int(written.state.length)

    fresh = random_head(tmp_path / "head", target)
    again = write(target, text[: length + 1], 0, fresh, 16)
    for name in ("tokens", "parent", "score"):
        mine, theirs = getattr(resume(written.state, used, 16), name), getattr(resume(again.state, fresh, 16), name)
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3)

    # Another continuation of the first 30 tokens: what the head knew of the old one must not show.
    other = [*text[:30], 7, 8, 9]
    rewind(written.state, other, 30)
    used.rewind(30)
    prefill(target, written.state, torch.tensor(other[30:-1]), used)
    anew = random_head(tmp_path / "head", target)
    expected = resume(write(target, other, 0, anew, 16).state, anew, 16)
    assert resume(written.state, used, 16).tokens.tolist() == expected.tokens.tolist()


def test_a_prompt_of_one_token_is_drafted_from(tmp_path: Path) -> None:
    target = random_target()
    plain = write(target, [5], 20, PlainDrafter(), 1)
    assert write(target, [5], 20, random_head(tmp_path / "head", target), 16).tokens == plain.tokens


@pytest.mark.parametrize("settings", [SamplingSettings(), SamplingSettings(temperature=0.8, seed=3)])
def test_an_oracle_head_is_accepted_to_its_full_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: SamplingSettings
) -> None:
    """Logits that name the target's own continuation, through candidates, search and step: τ = depth + 1."""
    target = random_target()
    depth = 8
    plain = write(target, PROMPT, 6 * (depth + 1), PlainDrafter(), 1, settings)
    text = PROMPT + plain.tokens
    drafter = random_head(tmp_path / "head", target)
    drafter.head = replace(drafter.head, target_ids=torch.arange(VOCAB))

    def oracle(*arguments: object) -> torch.Tensor:
        count, length = arguments[-2:]
        assert isinstance(count, torch.Tensor)
        assert isinstance(length, torch.Tensor)
        following = text[int(count + length) + 1 :][:depth]
        logits = torch.randn(depth, VOCAB, generator=torch.Generator().manual_seed(0))
        for level, token in enumerate(following):
            logits[level, token] += 20
        return logits

    monkeypatch.setattr("dart_core.head_drafter.draft_logits", oracle)
    drafted = write(target, PROMPT, 6 * (depth + 1), drafter, 64, settings)
    assert drafted.tokens == plain.tokens
    assert drafted.counts == [depth + 1] * 6
