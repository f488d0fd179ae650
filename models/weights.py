"""A target's tensors from its files: read, fused, quantised and placed one at a time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from kernels.linear4 import pack
from kernels.weight4 import Weight4, cat_rows, dequantise, quantise_8bit, quantise_affine
from models.config import read_config, rotary
from models.decoder import DecoderConfig, Layer, Linear, Target, one_operator
from models.errors import ModelError
from models.gguf_file import GGUFSource
from models.progress import Progress, silent
from models.quantise import AFFINE_GROUP, by_rows
from models.resolve import ModelFiles
from models.safetensors_files import SafetensorsSource


class Source(Protocol):
    """Tensors by their Hugging Face names."""

    @property
    def path(self) -> Path:
        """The file or directory."""

    def names(self) -> set[str]:
        """Names of all tensors."""

    def read(self, name: str) -> Weight4 | Tensor:
        """One tensor, in 4 bits where the file has it so."""

    def quantise(self, matrix: Tensor) -> Weight4 | Tensor:
        """A float matrix in the 4-bit code that goes with this kind of file."""


def load_target(files: ModelFiles, weights: str, device: torch.device, progress: Progress = silent) -> Target:
    """Reads a model; peak memory is the model as kept plus one matrix in fp32.

    `weights` "4bit" quantises every linear layer (the embedding stays in 16 bits), "fp32" keeps what the file
    holds, unpacked to fp32. Raises ModelError naming the file and the tensor.
    """
    config = read_config(files.directory)
    source: Source = (
        GGUFSource(files.weights) if files.weights.suffix == ".gguf" else SafetensorsSource(files.directory)
    )
    reader = _Reader(source, config, weights == "4bit", device)
    layers = []
    for index in range(config.layers):
        layers.append(reader.layer(index))
        progress("reading weights", (index + 1) / (config.layers + 2))
    shape = (config.vocab_size, config.hidden_size)
    matrix = reader.matrix("model.embed_tokens.weight", shape)
    embed = reader.embedding(matrix)
    if "lm_head.weight" in source.names() or not config.source.tie_word_embeddings:
        matrix = reader.matrix("lm_head.weight", shape)
    head = reader.output_head(matrix)
    frequency, scale = rotary(config)
    if "rope_freqs.weight" in source.names():  # llama.cpp's form of Llama 3's scaling
        frequency = frequency / reader.vector("rope_freqs.weight", config.head_dim // 2).cpu()
    progress("reading weights", 1.0)
    target = Target(
        config,
        embed,
        tuple(layers),
        reader.vector("model.norm.weight", config.hidden_size),
        head,
        frequency.to(device),
        scale,
    )
    return one_operator(target)


def size_in_bytes(target: Target) -> int:
    """Bytes of weights in memory."""
    linears = [target.head]
    for layer in target.layers:
        linears += [layer.qkv, layer.out, layer.gate_up, layer.down]
    return target.embed.nbytes + sum(linear.weight.nbytes for linear in linears)


class _Reader:
    """Reads named parts of a decoder, checking that each is there and has the shape the config promises."""

    def __init__(self, source: Source, config: DecoderConfig, four_bit: bool, device: torch.device) -> None:
        self._source, self._config = source, config
        self._four_bit, self._device = four_bit, device
        self._names, self._biased = source.names(), _biased(config)

    def layer(self, index: int) -> Layer:
        """Decoder layer `index`, qkv and gate/up fused."""
        c, at = self._config, f"model.layers.{index}."
        query, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        normed = c.family == "qwen3"
        return Layer(
            input_norm=self.vector(at + "input_layernorm.weight", c.hidden_size),
            qkv=self.fused(
                {
                    at + "self_attn.q_proj": query,
                    at + "self_attn.k_proj": keys,
                    at + "self_attn.v_proj": keys,
                },
                c.hidden_size,
            ),
            q_norm=self.vector(at + "self_attn.q_norm.weight", c.head_dim) if normed else None,
            k_norm=self.vector(at + "self_attn.k_norm.weight", c.head_dim) if normed else None,
            out=self.linear(at + "self_attn.o_proj", c.hidden_size, query),
            post_norm=self.vector(at + "post_attention_layernorm.weight", c.hidden_size),
            gate_up=self.fused(
                {at + "mlp.gate_proj": c.intermediate_size, at + "mlp.up_proj": c.intermediate_size},
                c.hidden_size,
            ),
            down=self.linear(at + "mlp.down_proj", c.hidden_size, c.intermediate_size),
        )

    def embedding(self, matrix: Weight4 | Tensor) -> Tensor:
        """The embedding in the type of the file, fp16 where that is fp32 and the target in 4 bits."""
        values = dequantise(matrix) if isinstance(matrix, Weight4) else matrix
        return (values.half() if self._four_bit and values.dtype == torch.float32 else values).to(self._device)

    def output_head(self, matrix: Weight4 | Tensor) -> Linear:
        """The output head [V, H]. In a GGUF file that keeps it in more than 4 bits it stays in 8.

        SmolLM2-135M's head in 4 bits costs 6 % of perplexity, in 8 bits nothing that shows.
        """
        in_8bit = self._four_bit and isinstance(self._source, GGUFSource) and matrix.shape[1] % AFFINE_GROUP == 0
        if isinstance(matrix, Tensor) and in_8bit:
            codes = by_rows(matrix, lambda rows: quantise_8bit(rows, AFFINE_GROUP))
            return Linear(pack(_on(codes, self._device)), twice=True)
        return self._placed([matrix], None)

    def linear(self, name: str, rows: int, columns: int) -> Linear:
        """One projection [rows, columns] with its bias where it has one."""
        return self.fused({name: rows}, columns)

    def fused(self, parts: dict[str, int], columns: int) -> Linear:
        """Projections below one another as a single matrix: name → rows."""
        matrices = [self.matrix(f"{name}.weight", (rows, columns)) for name, rows in parts.items()]
        biased = any(f"{name}.bias" in self._names or name.split(".")[-1] in self._biased for name in parts)
        biases = [self.vector(f"{name}.bias", rows) for name, rows in parts.items()] if biased else None
        return self._placed(matrices, None if biases is None else torch.cat(biases))

    def vector(self, name: str, size: int) -> Tensor:
        """A norm weight or bias, fp32 [size]."""
        return _float32(self.matrix(name, (size,))).to(self._device)

    def _placed(self, matrices: list[Weight4 | Tensor], bias: Tensor | None) -> Linear:
        if not self._four_bit:
            return Linear(torch.cat([_float32(matrix) for matrix in matrices]).to(self._device), bias)
        weight = _stack_4bit(matrices, self._source.quantise)
        if isinstance(weight, Weight4):
            return Linear(pack(_on(weight, self._device)), bias)
        return Linear(weight.to(self._device), bias)

    def matrix(self, name: str, shape: tuple[int, ...]) -> Weight4 | Tensor:
        """A tensor as its file holds it. Raises ModelError unless it is there and of this shape."""
        if name not in self._names:
            raise ModelError(
                f"{self._source.path} lacks the tensor {name}",
                "the file is not whole, or not of this config's model",
            )
        value = self._source.read(name)
        if tuple(value.shape) != shape:
            raise ModelError(
                f"{self._source.path}: {name} has shape {list(value.shape)}, the config asks for {list(shape)}",
                "config.json and weights are not of one model; download both again",
            )
        return value


def _stack_4bit(matrices: list[Weight4 | Tensor], quantise: Callable[[Tensor], Weight4 | Tensor]) -> Weight4 | Tensor:
    """Quantises what is still in floating point and stacks; where the codes differ, all go to the affine code."""
    coded = [matrix if isinstance(matrix, Weight4) else quantise(matrix) for matrix in matrices]
    same = [matrix for matrix in coded if isinstance(matrix, Weight4)]
    if len(same) < len(coded):
        return torch.cat([_float32(matrix) for matrix in coded])  # rows no group divides
    try:
        return cat_rows(same)
    except ValueError:
        return cat_rows([_affine(matrix) for matrix in matrices])


def _affine(matrix: Weight4 | Tensor) -> Weight4:
    if isinstance(matrix, Weight4) and matrix.group == AFFINE_GROUP and matrix.minimum is not None:
        return matrix
    return by_rows(_float32(matrix), quantise_affine)


def _on(weight: Weight4, device: torch.device) -> Weight4:
    minimum = None if weight.minimum is None else weight.minimum.to(device)
    return replace(
        weight,
        codes=weight.codes.to(device),
        codebook=weight.codebook.to(device),
        scale=weight.scale.to(device),
        minimum=minimum,
    )


def _biased(config: DecoderConfig) -> set[str]:
    """The projections that have a bias by the config; a GGUF file's config does not tell, the file does."""
    names = {"q_proj", "k_proj", "v_proj"} if config.family == "qwen2" else set()
    if config.family in ("llama", "qwen3") and config.source.attention_bias:
        names |= {"q_proj", "k_proj", "v_proj", "o_proj"}
    if config.family == "llama" and config.source.mlp_bias:
        names |= {"gate_proj", "up_proj", "down_proj"}
    return names


def _float32(matrix: Weight4 | Tensor) -> Tensor:
    return dequantise(matrix) if isinstance(matrix, Weight4) else matrix.float()
