"""Merge a LoRA adapter of PEFT into the weights of a model, so that it costs nothing per token."""

import json
import math
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_LORA_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
#: Settings of PEFT that change more than the weights of linear layers, or that differ by layer.
_UNSUPPORTED = (
    "alpha_pattern",
    "alora_invocation_tokens",
    "fan_in_fan_out",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_dora",
)


class UnsupportedAdapter(Exception):
    """The reason why an adapter cannot be merged into the model."""


def merge_adapter(model: Any, folder: Path) -> None:
    """Add the product of each pair of matrices to the weight of its layer."""
    config = json.loads((folder / "adapter_config.json").read_bytes())
    scale = _read_scale(config)
    pairs = _read_pairs(folder / "adapter_model.safetensors")
    torch = import_module("torch")
    with torch.no_grad():
        for name, (a, b) in pairs.items():
            weight = _find_weight(model, name, (b.shape[0], a.shape[1]))
            a, b = (one.to(weight.device, torch.float32) for one in (a, b))
            weight.copy_(weight.to(torch.float32) + scale * (b @ a))


def _read_scale(config: Mapping[str, Any]) -> float:
    if config.get("peft_type") != "LORA":
        raise UnsupportedAdapter(f"`peft_type` must be LORA, got {config.get('peft_type')!r}")
    for name in _UNSUPPORTED:
        if config.get(name):
            raise UnsupportedAdapter(f"`{name}` is not supported, got {config[name]!r}")
    if config.get("bias", "none") != "none":
        raise UnsupportedAdapter(f"`bias` must be none, got {config['bias']!r}")
    rank = config["r"]
    return float(config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _read_pairs(path: Path) -> dict[str, tuple[Any, Any]]:
    """Return the matrices A and B of each layer, by the name of the layer."""
    if not path.is_file():
        raise UnsupportedAdapter(f"it has no {path.name}")
    sides: dict[str, dict[str, Any]] = {}
    for name, tensor in import_module("safetensors.torch").load_file(path).items():
        match = _LORA_TENSOR.fullmatch(name)
        if match is None:
            raise UnsupportedAdapter(f"the tensor {name} is not a LoRA matrix of a linear layer")
        sides.setdefault(match["module"], {})[match["side"]] = tensor
    if incomplete := [name for name, found in sides.items() if len(found) != 2]:
        raise UnsupportedAdapter(f"it has only one of two matrices of {incomplete[0]}")
    return {name: (found["A"], found["B"]) for name, found in sides.items()}


def _find_weight(model: Any, name: str, shape: tuple[int, int]) -> Any:
    try:
        weight = model.get_parameter(f"{name}.weight")
    except AttributeError as error:
        raise UnsupportedAdapter(f"the model has no layer {name}") from error
    if tuple(weight.shape) != shape:
        raise UnsupportedAdapter(
            f"it is for weights of {shape} in {name}, but the model has {tuple(weight.shape)}"
        )
    if weight.is_meta or not weight.is_floating_point():
        raise UnsupportedAdapter(f"the weights of {name} are offloaded or quantized")
    return weight
