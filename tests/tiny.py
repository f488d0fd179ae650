"""Tiny models in their published file formats, made by transformers in a second, with a real tokenizer."""

from pathlib import Path
from typing import Any

import torch

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "vocab_size": 300,
    "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.1,
}  # fmt: skip


def tiny_config(family: str, **changes: Any) -> Any:
    """A transformers config of the family: llama, mistral, qwen2 or qwen3."""
    from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

    kinds = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
    return kinds[family](**{**SIZES, **changes})


def tiny_hf_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A random transformers model, fp32, norms and biases random too so that a swapped one shows."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family, **changes), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def tiny_tokenizer() -> Any:
    """A byte-level tokenizer with the special tokens of a chat: 256 bytes after 3 special tokens and padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", bos_token="<|im_start|>")
    fast.chat_template = TEMPLATE
    return fast


def tiny_model(family: str, path: Path, seed: int = 0, shard: str = "1GB", **changes: Any) -> Path:
    """Saves a tiny random model with its tokenizer at `path`; `shard` "20KB" makes several files."""
    tiny_hf_model(family, seed, **changes).save_pretrained(path, max_shard_size=shard)
    tiny_tokenizer().save_pretrained(path)
    return path
