"""Weights from each kind of file: 4-bit codes taken over exactly, the rest as the file says."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.linear4 import Packed4, unpack
from kernels.weight4 import Weight4, dequantise, quantise_affine
from models.decoder import Linear, Target
from models.errors import ModelError
from models.gguf_file import GGUFSource
from models.quantise import from_bitsandbytes, quantise_nf4
from models.resolve import resolve_model
from models.weights import load_target, size_in_bytes
from tests.tiny import tiny_hf_model, tiny_model

CPU = torch.device("cpu")
Q4_0, Q4_1, Q8_0 = (gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q8_0"))


def write_gguf(path: Path, tensors: dict[str, tuple[np.ndarray[Any, Any], Any]], architecture: str = "llama") -> Path:
    """A GGUF file of fp32 arrays quantised as asked for (None leaves fp32)."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_token_list(["a", "bc", "def"])
    for name, (values, kind) in tensors.items():
        if kind is None:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def values(rows: int, columns: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("kind", [Q4_0, Q4_1])
def test_gguf_codes_are_taken_over_exactly(tmp_path: Path, kind: Any) -> None:
    matrix = values(24, 96)
    source = GGUFSource(write_gguf(tmp_path / "m.gguf", {"blk.0.ffn_down.weight": (matrix, kind)}))
    weight = source.read("model.layers.0.mlp.down_proj.weight")
    assert isinstance(weight, Weight4)
    expected = torch.from_numpy(gguf.dequantize(gguf.quantize(matrix, kind), kind))
    torch.testing.assert_close(dequantise(weight), expected, rtol=1e-6, atol=1e-6)


def test_gguf_rows_of_q_and_k_are_put_back(tmp_path: Path) -> None:
    """llama.cpp stores the rotary halves of each head interleaved: row 2j + i of a head is row j + i · D/2."""
    heads, half = 4, 8
    matrix = values(heads * 2 * half, 64)
    interleaved = matrix.reshape(heads, 2, half, 64).swapaxes(1, 2).reshape(matrix.shape)
    tensors = {"blk.0.attn_q.weight": (interleaved, None), "blk.0.attn_v.weight": (interleaved, None)}
    llama = GGUFSource(write_gguf(tmp_path / "llama.gguf", tensors))
    query = llama.read("model.layers.0.self_attn.q_proj.weight")
    assert isinstance(query, torch.Tensor)
    assert torch.equal(query, torch.from_numpy(matrix))
    value = llama.read("model.layers.0.self_attn.v_proj.weight")
    assert isinstance(value, torch.Tensor)
    assert torch.equal(value, torch.from_numpy(interleaved))
    qwen = GGUFSource(write_gguf(tmp_path / "qwen.gguf", tensors, "qwen3"))
    untouched = qwen.read("model.layers.0.self_attn.q_proj.weight")
    assert isinstance(untouched, torch.Tensor)
    assert torch.equal(untouched, torch.from_numpy(interleaved))


def test_other_gguf_types_are_unpacked(tmp_path: Path) -> None:
    matrix = values(8, 64)
    source = GGUFSource(write_gguf(tmp_path / "m.gguf", {"token_embd.weight": (matrix, Q8_0)}))
    expected = torch.from_numpy(gguf.dequantize(gguf.quantize(matrix, Q8_0), Q8_0))
    found = source.read("model.embed_tokens.weight")
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("keep", [3, 20, 60, 150, -1, -300])
def test_a_gguf_file_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.ffn_down.weight": (values(24, 96), Q4_1)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"m\.gguf"):
        GGUFSource(path)


def test_bitsandbytes_states_are_taken_over_exactly() -> None:
    from bitsandbytes import functional

    matrix = torch.randn(32, 128, generator=torch.Generator().manual_seed(0))
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            packed, state = functional.quantize_4bit(matrix, blocksize=64, quant_type=kind, compress_statistics=nested)
            parts = {name.removeprefix("weight."): part for name, part in state.as_dict(packed=True).items()}
            weight = from_bitsandbytes(packed, parts)
            expected = functional.dequantize_4bit(packed, state)
            torch.testing.assert_close(dequantise(weight), expected, rtol=1e-6, atol=1e-7)


def test_a_bitsandbytes_checkpoint_loads(tmp_path: Path) -> None:
    from bitsandbytes import functional

    path = tiny_model("llama", tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    coded: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if ".mlp.gate_proj" in name or ".mlp.up_proj" in name:
            packed, state = functional.quantize_4bit(tensor, blocksize=64, quant_type="nf4", compress_statistics=True)
            coded[name] = packed
            coded |= {f"{name}.{part}": value for part, value in state.as_dict(packed=True).items()}
        else:
            coded[name] = tensor
    save_file(coded, path / "model.safetensors", metadata={"format": "pt"})
    target = load_target(resolve_model(str(path)), "4bit", CPU)
    gate = tensors["model.layers.0.mlp.gate_proj.weight"]
    weight = exact(target.layers[0].gate_up)[: len(gate)]
    assert float((weight - gate).norm() / gate.norm()) < 0.12
    del coded["model.layers.0.mlp.gate_proj.weight.absmax"]
    save_file(coded, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="gate_proj"):
        load_target(resolve_model(str(path)), "4bit", CPU)


def exact(linear: Linear) -> torch.Tensor:
    return dequantise(unpack(linear.weight)) if isinstance(linear.weight, Packed4) else linear.weight


def test_fused_matrices_hold_their_parts_in_order(tmp_path: Path) -> None:
    path = tiny_model("qwen2", tmp_path / "model")
    target = load_target(resolve_model(str(path)), "fp32", CPU)
    model = tiny_hf_model("qwen2")
    attention, mlp = model.model.layers[1].self_attn, model.model.layers[1].mlp
    parts = [attention.q_proj, attention.k_proj, attention.v_proj]
    assert torch.equal(exact(target.layers[1].qkv), torch.cat([part.weight for part in parts]))
    bias = target.layers[1].qkv.bias
    assert bias is not None
    assert torch.equal(bias, torch.cat([part.bias for part in parts]))
    assert torch.equal(exact(target.layers[1].gate_up), torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))


def same(first: Target, second: Target) -> bool:
    return all(
        torch.equal(exact(mine), exact(theirs))
        for a, b in zip(first.layers, second.layers, strict=True)
        for mine, theirs in ((a.qkv, b.qkv), (a.out, b.out), (a.gate_up, b.gate_up), (a.down, b.down))
    )


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    whole = load_target(resolve_model(str(tiny_model("llama", tmp_path / "one"))), "fp32", CPU)
    sharded = tiny_model("llama", tmp_path / "many", shard="100KB")
    names = sorted(path.name for path in sharded.glob("*.safetensors"))
    assert len(names) > 2
    assert same(whole, load_target(resolve_model(str(sharded)), "fp32", CPU))
    (sharded / names[1]).unlink()
    with pytest.raises(ModelError, match=names[1]):
        load_target(resolve_model(str(sharded)), "fp32", CPU)


def test_four_bits_take_a_seventh_of_fp32(tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path / "model", intermediate_size=256)
    sizes = [size_in_bytes(load_target(resolve_model(str(path)), kind, CPU)) for kind in ("fp32", "4bit")]
    embedding = 300 * 64
    assert (sizes[1] - 2 * embedding) * 7 < sizes[0] - 4 * embedding


def test_quantisers_are_as_near_as_their_codes_allow() -> None:
    matrix = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    for weight, limit in ((quantise_nf4(matrix), 0.11), (quantise_affine(matrix), 0.09)):
        assert float((dequantise(weight) - matrix).norm() / matrix.norm()) < limit


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt_neox"}, "gpt_neox"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"num_key_value_heads": 3}, "4 heads over 3"),
        ({"head_dim": 15}, "config.json cannot be read: .*head"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ],
)
def test_models_the_decoder_cannot_run_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tiny_model("llama", tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ModelError, match=words) as caught:
        load_target(resolve_model(str(path)), "4bit", CPU)
    assert "supported" in caught.value.hint
