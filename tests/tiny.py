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


_GGUF_PARTS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` → `blk.3.attn_q.weight`."""
    ends = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if not name.startswith("model.layers."):
        return ends.get(name, name.replace("lm_head", "output"))
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    stem, kind = part.rsplit(".", 1)
    return f"blk.{layer}.{_GGUF_PARTS[stem]}.{kind}"


def tiny_gguf(
    family: str,
    path: Path,
    kinds: dict[str, str] | None = None,
    settings: dict[str, Any] | None = None,
    extra: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Writes `tiny_hf_model` as a GGUF file, as llama.cpp's converter would.

    `kinds`: tensor name in the file, or a part of it → quantisation (F32 otherwise). `settings`: further ones,
    by the key after the architecture. `extra`: further tensors.
    """
    import gguf

    model = tiny_hf_model(family, **changes)
    config = model.config
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim if hasattr(config, "head_dim") else config.hidden_size // 4)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for key, value in (settings or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        (writer.add_uint32 if isinstance(value, int) else add)(key if "." in key[:8] else f"{family}.{key}", value)
    _add_tokenizer(writer, config)
    tied = config.tie_word_embeddings
    tensors = {name: value for name, value in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    for name, value in tensors.items():
        if family == "llama" and (".q_proj." in name or ".k_proj." in name):  # the converter interleaves their rows
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            value = value.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        place = gguf_name(name)
        kind = next((kind for part, kind in (kinds or {}).items() if part in place), None)
        array = value.numpy().copy()
        if kind is None:
            writer.add_tensor(place, array)
        else:
            number = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(place, gguf.quantize(array, number), raw_dtype=number)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any, config: Any) -> None:
    """The vocabulary of `tiny_tokenizer`, one merge, filled up to the model's, with its template."""
    import gguf

    tokenizer = tiny_tokenizer()
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    tokens += ["he", *(f"[PAD{i}]" for i in range(len(tokens) + 1, config.vocab_size))]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if i < 3 else normal for i in range(len(tokens))])
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
