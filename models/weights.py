"""A target's tensors from its files: read, fused, quantised and placed one at a time."""

from collections.abc import Callable
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
from models.quantise import AFFINE_GROUP
from models.resolve import ModelFiles
from models.safetensors_files import SafetensorsSource

Progress = Callable[[str, float], None]


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

    def rope_factors(self) -> Tensor | None:
        """Divisors of the rotary frequencies, where the file has them."""


def load_target(
    files: ModelFiles, weights: str, device: torch.device, progress: Progress = lambda stage, fraction: None
) -> Target:
    """Reads a model; peak memory is the model as kept plus one fused matrix in fp32.

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
    embed = reader.dense("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
    tied = "lm_head.weight" not in source.names()
    head = reader.output_head("model.embed_tokens" if tied else "lm_head")
    frequency, scale = rotary(config)
    factors = source.rope_factors()
    progress("reading weights", 1.0)
    target = Target(
        config,
        embed.to(torch.float16 if weights == "4bit" and embed.dtype == torch.float32 else embed.dtype),
        tuple(layers),
        reader.vector("model.norm.weight", config.hidden_size),
        head,
        (frequency if factors is None else frequency / factors).to(device),
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
        self._names = source.names()

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

    def output_head(self, name: str) -> Linear:
        """The output head [V, H]. In a GGUF file that keeps it in more than 4 bits it stays in 8.

        SmolLM2-135M's head in 4 bits costs 6 % of perplexity, in 8 bits nothing that shows.
        """
        c = self._config
        matrix = self._read(f"{name}.weight", (c.vocab_size, c.hidden_size)) if self._keeps_8bit_head() else None
        if not isinstance(matrix, Tensor) or f"{name}.bias" in self._names:
            return self.linear(name, c.vocab_size, c.hidden_size)
        return Linear(pack(quantise_8bit(matrix, AFFINE_GROUP)), twice=True)

    def _keeps_8bit_head(self) -> bool:
        return self._four_bit and isinstance(self._source, GGUFSource) and self._config.hidden_size % AFFINE_GROUP == 0

    def linear(self, name: str, rows: int, columns: int) -> Linear:
        """One projection [rows, columns] with its bias where the file has one."""
        return self.fused({name: rows}, columns)

    def fused(self, parts: dict[str, int], columns: int) -> Linear:
        """Projections below one another as a single matrix: name → rows."""
        matrices = [self._read(f"{name}.weight", (rows, columns)) for name, rows in parts.items()]
        biases = [self.vector(f"{name}.bias", n) for name, n in parts.items() if f"{name}.bias" in self._names]
        if biases and len(biases) < len(parts):
            raise ModelError(f"{self._source.path}: only some of {', '.join(parts)} have a bias", "use another file")
        weight = (
            _stack_4bit(matrices, self._source.quantise)
            if self._four_bit
            else torch.cat([_float32(m) for m in matrices])
        )
        placed = pack(weight) if isinstance(weight, Weight4) else weight.to(self._device)
        return Linear(placed, torch.cat(biases) if biases else None)

    def dense(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor that is kept in floating point, in the type of the file."""
        value = self._read(name, shape)
        return (dequantise(value) if isinstance(value, Weight4) else value).to(self._device)

    def vector(self, name: str, size: int) -> Tensor:
        """A norm weight or bias, fp32 [size]."""
        return self.dense(name, (size,)).float()

    def _read(self, name: str, shape: tuple[int, ...]) -> Weight4 | Tensor:
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
    coded = [matrix for matrix in matrices if isinstance(matrix, Weight4)]
    if not coded:
        return quantise(torch.cat([_float32(matrix) for matrix in matrices]))
    if len(coded) == len(matrices):
        try:
            return cat_rows(coded)
        except ValueError:
            pass  # a GGUF file may mix Q4_0 and Q4_1
    return cat_rows([_affine(matrix) for matrix in matrices])


def _affine(matrix: Weight4 | Tensor) -> Weight4:
    keep = isinstance(matrix, Weight4) and matrix.group == AFFINE_GROUP and matrix.minimum is not None
    return matrix if keep and isinstance(matrix, Weight4) else quantise_affine(_float32(matrix), AFFINE_GROUP)


def _float32(matrix: Weight4 | Tensor) -> Tensor:
    return dequantise(matrix) if isinstance(matrix, Weight4) else matrix.float()
