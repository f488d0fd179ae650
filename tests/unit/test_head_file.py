"""Draft heads of every kind we load, and those that are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dart_core.draft_head import DraftHead, draft_logits, new_head_cache
from dart_core.head_file import load_head
from kernels.linear4 import pack
from kernels.weight4 import dequantise, quantise_affine
from models.decoder import Linear, Target
from models.errors import ModelError
from tests.golden.test_draft_head import EMBED, HEAD, rounds, target


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copytree(HEAD, tmp_path / "head")
    (tmp_path / "head/vectors.safetensors").unlink()
    return tmp_path / "head"


def edit_config(directory: Path, **changes: Any) -> None:
    raw = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(raw | changes))


def edit_tensors(directory: Path, **changes: Tensor | None) -> None:
    """Replaces tensors (underscores for dots) or, with None, takes them out."""
    tensors = load_file(directory / "model.safetensors")
    for name in list(tensors):
        change = changes.get(name.replace(".", "_"), tensors[name])
        tensors.pop(name)
        if change is not None:
            tensors[name] = change
    save_file(tensors, directory / "model.safetensors")


def first_round(head: DraftHead) -> Tensor:
    tokens, taps, _ = rounds()[0]
    cache = new_head_cache(head, 32)
    return draft_logits(head, cache, EMBED, tokens, taps, torch.tensor([len(tokens)]), torch.tensor([0]))


def test_final_norm_once(directory: Path) -> None:
    """A weight whose square is applied by "twice" is applied by itself by "once"."""
    edit_config(directory, final_norm="once")
    once = load_head(directory, target())
    assert once.config.final_norms == 1
    expected = rounds()[0][2]
    assert not torch.allclose(first_round(once), expected, atol=1e-2)
    edit_config(directory, final_norm="twice")
    torch.testing.assert_close(first_round(load_head(directory, target())), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("four_bit", [False, True])
def test_output_head_of_the_target(directory: Path, four_bit: bool) -> None:
    """Without `lm_head.weight` the head reads the target's rows, in 4 bits too, by the ids of d2t."""
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(512, 64, generator=random)
    own = target()
    if four_bit:
        packed = quantise_affine(weight)
        weight, head = dequantise(packed), Linear(pack(packed))
    else:
        head = Linear(weight)
    lending = Target(own.config, own.embed, (), own.norm, head, own.inverse_frequency, 1.0)
    edit_tensors(directory, lm_head_weight=None)
    borrowed = load_head(directory, lending)
    edit_tensors(directory)
    assert isinstance(borrowed.lm_head.weight, Tensor)
    torch.testing.assert_close(borrowed.lm_head.weight, weight[borrowed.target_ids], atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(directory: Path, dtype: torch.dtype) -> None:
    tensors = load_file(directory / "model.safetensors")
    edit_tensors(directory, **{k.replace(".", "_"): v.to(dtype) for k, v in tensors.items() if v.is_floating_point()})
    expected = rounds()[0][2]
    for head in (load_head(directory, target()), load_head(directory, target(), dtype=dtype)):
        difference = (first_round(head) - expected).abs().max()
        assert 1e-5 < difference < 0.05 * expected.abs().max()


def test_four_bits(directory: Path) -> None:
    """Matrices in 4 bits draft nearly what fp32 drafts: the same order of magnitude of every logit."""
    expected = rounds()[0][2]
    logits = first_round(load_head(directory, target(), four_bit=True))
    assert torch.cosine_similarity(logits, expected, dim=-1).min() > 0.95
    assert not torch.allclose(logits, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 128}, "hidden size is 128, the target's is 64"),
        ({"vocab_size": 1000}, "vocabulary is 1000, the target's is 512"),
        ({"taps": [2, 6, 10]}, r"tapped layers is \[2, 6, 10\], the target's is \[2, 6, 9\]"),
        ({"draft_vocab_size": 64}, r"lm_head.weight is \[128, 64\], config and target call for \[64, 64\]"),
        ({"draft_length": 0}, "draft_length in config.json is 0"),
        ({"draft_length": 40}, "draft_length is 40, the most is 31"),
        ({"hidden_size": 1 << 40}, "hidden_size in config.json"),
        ({"num_attention_heads": "4"}, "num_attention_heads in config.json is '4'"),
        ({"num_key_value_heads": 3}, "do not form groups"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "unheard of"}}, "rope_scaling"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"final_norm": "thrice"}, "thrice"),
    ],
)
def test_config_that_does_not_fit(directory: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(directory, **changes)
    with pytest.raises(ModelError, match=message):
        load_head(directory, target())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"fc_weight": torch.zeros(64, 96)},
            r"fc.weight is \[64, 96\], config and target call for \[64, 192\]",
        ),
        ({"midlayer_mask_rep": None}, "no tensor midlayer.mask_rep"),
        ({"norm_weight": torch.full((64,), torch.nan)}, "norm.weight holds values that are not finite"),
        ({"norm_weight": torch.ones(64, dtype=torch.int32)}, "norm.weight holds torch.int32"),
        ({"d2t": torch.full((128,), 500)}, "d2t leads to token 627, the target's vocabulary has 512"),
        ({"d2t": torch.full((128,), -1)}, "d2t leads to token -1"),
        ({"d2t": -torch.arange(128)}, "one token from two places"),
        ({"d2t": torch.zeros(128)}, "d2t holds torch.float32"),
        ({"d2t": None}, "no tensor d2t"),
    ],
)
def test_tensors_that_do_not_fit(directory: Path, changes: dict[str, Tensor | None], message: str) -> None:
    edit_tensors(directory, **changes)
    with pytest.raises(ModelError, match=message):
        load_head(directory, target())


def test_missing_and_damaged_files(directory: Path) -> None:
    weights, config = directory / "model.safetensors", directory / "config.json"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        load_head(directory, target())
    config.write_text("[1, 2]")
    with pytest.raises(ModelError, match="not a JSON object"):
        load_head(directory, target())
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        load_head(directory / "nowhere", target())
