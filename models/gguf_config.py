"""A GGUF file's settings as a transformers config.

transformers (5.24) has a reader of its own, which leaves out rope scaling, gives every file with Mistral in its
name a window of 4,096 tokens, and takes 2.5 s.
"""

from typing import Any

from models.config import in_short
from models.errors import ModelError
from models.gguf_header import GGUFHeader

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # llama.cpp writes Mistral and SmolLM files as "llama"


def config_of(header: GGUFHeader) -> Any:
    """The transformers config of the model in the file.

    Raises ModelError where a setting is missing or the model is of a kind the decoder does not do.
    """
    from transformers import AutoConfig

    family = header.setting("general.architecture")
    experts = header.settings.get(f"{family}.expert_count", 0)
    if family not in ARCHITECTURES or experts:
        found = f"a {family!r} model" + (f" with {experts} experts" if experts else "")
        raise ModelError(
            f"{header.path} holds {found}",
            f"supported are dense GGUF models of: {', '.join(ARCHITECTURES)}; try: dart-chat --model default",
        )
    settings = {key.removeprefix(f"{family}."): value for key, value in header.settings.items()}

    def needed(key: str) -> Any:
        return header.setting(f"{family}.{key}")

    heads, hidden = needed("attention.head_count"), needed("embedding_length")
    if "token_embd.weight" not in header.tensors:
        raise ModelError(f"{header.path} lacks the tensor token_embd.weight", "download it again")
    fields = {
        "hidden_size": hidden,
        "intermediate_size": needed("feed_forward_length"),
        "num_hidden_layers": needed("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": settings.get("attention.head_count_kv", heads),
        "head_dim": settings.get("attention.key_length", hidden // max(heads, 1)),
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        "rms_norm_eps": needed("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": needed("context_length"),
        "rope_parameters": _rope(settings),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": settings.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": settings.get("tokenizer.ggml.eos_token_id"),
    }
    try:
        return AutoConfig.for_model(family, **fields)
    except Exception as error:  # huggingface_hub has its own kinds for settings that contradict one another
        raise ModelError(f"{header.path} has settings that cannot be: {in_short(error)}", "use another file") from error


def _rope(settings: dict[str, Any]) -> dict[str, Any]:
    """transformers' rope parameters. Llama 3's factors are a tensor of the file (rope_freqs)."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": settings.get("rope.freq_base", 10000.0)}
    kind = settings.get("rope.scaling.type", "none")
    if kind != "none":
        rope |= {"rope_type": kind, "factor": settings.get("rope.scaling.factor", 1.0)}
    if kind == "yarn":
        original = settings.get("rope.scaling.original_context_length", settings["context_length"])
        rope["original_max_position_embeddings"] = original
    return rope
