"""Whole GGUF files, as llama.cpp writes them, against transformers' model of the same weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dart_core.state import new_state
from models.config import read_config, rotary
from models.decoder import Target, forward, output_logits
from models.errors import ModelError
from models.resolve import resolve_model
from models.tokenizer import eos_ids, load_tokenizer
from models.weights import load_target
from tests.tiny import tiny_gguf, tiny_hf_model, tiny_tokenizer

CPU = torch.device("cpu")
TOKENS = torch.randint(3, 300, (20,), generator=torch.Generator().manual_seed(1))
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is converted here stays out of the person's cache; compiled kernels are taken from there."""
    import models.gguf_directory

    def cache(*parts: str) -> Path:
        path = tmp_path.joinpath("cache", *parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    monkeypatch.setattr(models.gguf_directory, "cache_dir", cache)


def logits(target: Target) -> torch.Tensor:
    state = new_state(target.config, 64, CPU)
    rows = torch.arange(len(TOKENS))
    hidden, _ = forward(target, state.cache, TOKENS, rows, (2 << rows) - 1, state.length)
    return output_logits(target, hidden)


def matches(path: Path, model: Any) -> None:
    target = load_target(resolve_model(str(path)), "fp32", CPU)
    with torch.no_grad():
        expected = model(TOKENS[None]).logits[0]
    torch.testing.assert_close(logits(target), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True}),
        ("qwen2", {"head_dim": 16}),
        ("qwen3", {}),
    ],
)
def test_a_gguf_file_is_the_model_it_was_made_of(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    matches(tiny_gguf(family, tmp_path / "m.gguf", **changes), tiny_hf_model(family, **changes))


def test_rope_scaling_is_read(tmp_path: Path) -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}
    path = tiny_gguf("qwen3", tmp_path / "yarn.gguf", settings=yarn, rope_parameters=YARN)
    matches(path, tiny_hf_model("qwen3", rope_parameters=YARN))
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    path = tiny_gguf("llama", tmp_path / "linear.gguf", settings=linear)
    frequency, _ = rotary(read_config(resolve_model(str(path)).directory))
    plain, _ = rotary(read_config(resolve_model(str(tiny_gguf("llama", tmp_path / "plain.gguf"))).directory))
    torch.testing.assert_close(frequency, plain / 2)


def test_llama_3_divides_its_rotary_frequencies(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 16, dtype=np.float32)
    with_factors = tiny_gguf("llama", tmp_path / "m.gguf", extra={"rope_freqs.weight": factors})
    target = load_target(resolve_model(str(with_factors)), "fp32", CPU)
    plain, _ = rotary(target.config)
    torch.testing.assert_close(target.inverse_frequency * torch.from_numpy(factors), plain)
    short = tiny_gguf("llama", tmp_path / "short.gguf", extra={"rope_freqs.weight": factors[:9]})
    with pytest.raises(ModelError, match="rope_freqs"):
        load_target(resolve_model(str(short)), "fp32", CPU)


def test_mistral_files_have_no_window(tmp_path: Path) -> None:
    """They call themselves llama; transformers would give them MistralConfig's window of 4,096."""
    path = tiny_gguf("llama", tmp_path / "m.gguf", settings={"general.name": "Mistral 7B Instruct v0.3"})
    assert read_config(resolve_model(str(path)).directory).sliding_window is None


@pytest.mark.parametrize("kinds", [{"attn_q.weight": "Q4_1", "attn_k.weight": "Q4_0", "attn_v.weight": "Q8_0"}, {}])
def test_parts_of_different_types_are_fused(tmp_path: Path, kinds: dict[str, str]) -> None:
    """In 4 bits near the float model: correlation 0.95, near 0 with a wrong nibble or row order."""
    exact = load_target(resolve_model(str(tiny_gguf("llama", tmp_path / "exact.gguf"))), "fp32", CPU)
    mixed = tiny_gguf("llama", tmp_path / "m.gguf", kinds={**kinds, "ffn_down": "Q4_0", "ffn_up": "F16"})
    coded = load_target(resolve_model(str(mixed)), "4bit", CPU)
    pair = torch.stack((logits(exact).flatten(), logits(coded).flatten()))
    assert float(torch.corrcoef(pair)[0, 1]) > 0.9


def test_the_tokenizer_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf("llama", tmp_path / "m.gguf")
    said: list[str] = []
    files = resolve_model(str(path), lambda stage, fraction: said.append(stage))
    tokenizer = load_tokenizer(files.directory)
    text = "<|im_start|>user\nabc xyz<|im_end|>"
    assert tokenizer.encode(text) == tiny_tokenizer().encode(text)
    assert tokenizer.chat_template == tiny_tokenizer().chat_template
    assert eos_ids(files.directory, tokenizer) == {2}
    assert len(said) == 1
    assert resolve_model(str(path), lambda stage, fraction: said.append(stage)) == files
    assert len(said) == 1
    assert [entry.name for entry in files.directory.parent.iterdir()] == [files.directory.name]


def test_models_of_another_kind_are_refused(tmp_path: Path) -> None:
    experts = tiny_gguf("llama", tmp_path / "experts.gguf", settings={"expert_count": 8})
    with pytest.raises(ModelError, match="8 experts"):
        resolve_model(str(experts))
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "gemma2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="gemma2") as caught:
        resolve_model(str(tmp_path / "other.gguf"))
    assert "qwen3" in caught.value.hint


def test_files_that_are_not_gguf_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for content, words in (
        (b"", "whole"),
        (b"PK\3\4" + bytes(40), "begins with"),
        (b"GGUF\1" + bytes(40), "version 1"),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=words):
            resolve_model(str(path))


def test_no_damaged_header_does_anything_but_say_so(tmp_path: Path) -> None:
    """Bytes of the header changed at random: every outcome is a model or a ModelError, at once."""
    whole = bytearray(tiny_gguf("llama", tmp_path / "m.gguf", num_hidden_layers=1).read_bytes())
    from models.gguf_config import config_of
    from models.gguf_header import read_header

    random = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for place in random.integers(4, 9000, 4):
            damaged[place] = random.integers(256)
        (tmp_path / "d.gguf").write_bytes(damaged)
        try:
            config_of(read_header(tmp_path / "d.gguf"))
        except ModelError:
            refused += 1
    assert refused > 50
