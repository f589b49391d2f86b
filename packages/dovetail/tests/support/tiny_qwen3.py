"""A Qwen3 with ten million random weights and the real tokenizer and template.

Its output is random, but it is generated like that of the large models: with the same vocabulary,
control tokens and path through an engine. It is written without a tensor library.
"""

import json
import random
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import copy

import pytest
from server_process import TOKENIZERS

VOCABULARY, WIDTH, INNER, LAYERS = 151936, 64, 128, 2
HEADS, KEY_HEADS, HEAD = 4, 2, 32
CONTEXT = 40960
_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "attention_bias": False,
    "torch_dtype": "float32",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
_GENERATION = {"do_sample": True, "eos_token_id": [151645, 151643], "pad_token_id": 151643}
_SPREAD = 0.02
_POOL = 1 << 20  # random numbers; each row of weights is a part of them


def tiny_qwen3(folder: Path, spread: float = _SPREAD, layers: int = LAYERS) -> Path:
    """Write the model into a new folder, with the same weights each time.

    A larger `spread` makes the token probabilities less uniform. More `layers` make it slower.
    """
    source = TOKENIZERS / "qwen3"
    if not source.is_dir():
        pytest.skip("the qwen3 tokenizer is not available: run make tokenizers")
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(source / name, folder)
    (folder / "config.json").write_text(json.dumps({**_CONFIG, "num_hidden_layers": layers}))
    (folder / "generation_config.json").write_text(json.dumps(_GENERATION))
    _write_safetensors(folder / "model.safetensors", list(_shapes(layers)), spread, 7)
    return folder


LORA_RANK = 8
_LORA_MODULES = ("q_proj", "o_proj")


def tiny_lora(folder: Path, seed: int) -> Path:
    """Write a LoRA adapter of the model into a new folder. It changes the output a lot."""
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": LORA_RANK,
        "lora_alpha": LORA_RANK,
        "target_modules": list(_LORA_MODULES),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for layer in range(LAYERS):
        for name in _LORA_MODULES:
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            out, into = _LAYER[f"self_attn.{name}"]
            shapes.append((f"{module}.lora_A.weight", (LORA_RANK, into)))
            shapes.append((f"{module}.lora_B.weight", (out, LORA_RANK)))
    _write_safetensors(folder / "adapter_model.safetensors", shapes, 1.0, 100 + seed)
    return folder


def _shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCABULARY, WIDTH)
    yield "model.norm.weight", (WIDTH,)
    for layer in range(layers):
        for name, shape in _LAYER.items():
            yield f"model.layers.{layer}.{name}.weight", shape


_LAYER: dict[str, tuple[int, ...]] = {
    "input_layernorm": (WIDTH,),
    "post_attention_layernorm": (WIDTH,),
    "self_attn.q_norm": (HEAD,),
    "self_attn.k_norm": (HEAD,),
    "self_attn.q_proj": (HEADS * HEAD, WIDTH),
    "self_attn.k_proj": (KEY_HEADS * HEAD, WIDTH),
    "self_attn.v_proj": (KEY_HEADS * HEAD, WIDTH),
    "self_attn.o_proj": (WIDTH, HEADS * HEAD),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}


def _write_safetensors(
    path: Path, shapes: Sequence[tuple[str, tuple[int, ...]]], spread: float, seed: int
) -> None:
    """Write the safetensors format: the header's length, the header as JSON, the numbers."""
    header, end = {}, 0
    for name, shape in shapes:
        start, end = end, end + 4 * _product(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    dice = random.Random(seed)
    pool = array("f", (dice.gauss(0.0, spread) for _ in range(_POOL)))
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _, shape in shapes:
            if len(shape) == 1:  # a norm
                array("f", [1.0] * shape[0]).tofile(file)
                continue
            for _ in range(shape[0]):
                at = dice.randrange(_POOL - shape[1])
                pool[at : at + shape[1]].tofile(file)


def _product(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)
