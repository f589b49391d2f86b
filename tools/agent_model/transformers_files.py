"""Convert weights and adapters of a GGUF file to the names and the row order of transformers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}


def model_config(metadata: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return the config of a Llama model with tied embeddings, from the metadata of its file."""

    def value(name: str) -> Any:
        return metadata[f"llama.{name}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "_name_or_path": metadata["general.name"],
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": value("attention.head_count"),
        "num_key_value_heads": value("attention.head_count_kv"),
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base"),
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "torch_dtype": dtype,
    }


def peft_config(rank: int, alpha: float) -> dict[str, Any]:
    """Return the config of an adapter on all linear layers."""
    targets = [name.rpartition(".")[2] for name in MODULES.values() if name.endswith("_proj")]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": targets,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }


def convert_tensor(
    name: str, values: np.ndarray, heads: int, kv_heads: int
) -> tuple[str, np.ndarray]:
    """Return a tensor of the model or of an adapter under its name in transformers or PEFT."""
    if name in TOP_LEVEL:
        return TOP_LEVEL[name], values
    _, layer, part, kind = name.split(".", 3)
    module = f"model.layers.{layer}.{MODULES[part]}"
    if part in ("attn_q", "attn_k") and kind != "weight.lora_a":
        values = _join_halves(values, heads if part == "attn_q" else kv_heads)
    if kind == "weight":
        return f"{module}.weight", values
    side = kind.removeprefix("weight.lora_").upper()
    return f"base_model.model.{module}.lora_{side}.weight", values


def _join_halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of queries or keys: llama.cpp has the two halves of a head interleaved."""
    columns = values.shape[1]
    return values.reshape(heads, -1, 2, columns).swapaxes(1, 2).reshape(-1, columns)
