"""Fuse small operations of a model.

With single tokens, a GPU spends half its time on tiny operations: eight for a norm and ten for the
rotary embedding, in every layer. Operations are compared by their results, not by names: an
operation is replaced if it computes the same result as the fused one.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import triton

from dovetail.engines.transformers.child import kernels

ROTATION = "apply_rotary_pos_emb"  # its name in modeling code
RELATIVE_TOLERANCE = 2e-2  # in half precision
TRIAL_TOKENS = 3

RotationFunction = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def fuse(model: Any) -> dict[str, int]:
    """Replace the operations that can be fused. Return the numbers of norms and rotations."""
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    fused = {"norms": sum(_fuse_norm(module) for module in norms), "rotations": 0}
    modeling = sys.modules[type(model).__module__]
    original = getattr(modeling, ROTATION, None)
    if original is not None and _is_same_rotation(original, model):
        setattr(modeling, ROTATION, rotate)
        fused["rotations"] = 1
    return fused


def rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the rotary embedding to queries and keys [1, heads, tokens, size]."""
    size, tokens = q.shape[-1], q.shape[2]
    if len(q) != 1 or unsqueeze_dim != 1 or cos.shape[-1] != size:
        raise ValueError(f"the fused rotation does not support the shapes {q.shape}, {cos.shape}")
    cos, sin = cos.contiguous(), sin.contiguous()
    q_out, k_out = (x.new_empty((1, tokens, x.shape[1], size)) for x in (q, k))
    kernels.rotate[(tokens,)](
        q, k, cos, sin, q_out, k_out,
        q.stride(1), q.stride(2), k.stride(1), k.stride(2), size,
        Q_HEADS=q.shape[1], K_HEADS=k.shape[1], HALF=size // 2,
        BLOCK_H=triton.next_power_of_2(max(q.shape[1], k.shape[1])),
        BLOCK_D=triton.next_power_of_2(size // 2),
    )  # fmt: skip
    return q_out.transpose(1, 2), k_out.transpose(1, 2)


def _fuse_norm(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if weight is None or epsilon is None or weight.dim() != 1:
        return False

    def norm(hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(hidden, weight.shape, weight, epsilon)

    trial = torch.randn((TRIAL_TOKENS, len(weight)), dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        if not _is_close(norm(trial), module(trial)):
            return False
    module.forward = norm
    return True


def _is_same_rotation(original: RotationFunction, model: Any) -> bool:
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    q, k, cos, sin = (
        torch.randn(shape, dtype=model.dtype, device=model.device)
        for shape in (
            (1, TRIAL_TOKENS, heads, size),
            (1, TRIAL_TOKENS, kv_heads, size),
            *[(1, TRIAL_TOKENS, size)] * 2,
        )
    )
    arguments = q.transpose(1, 2), k.transpose(1, 2), cos, sin
    try:
        expected, actual = original(*arguments), rotate(*arguments)
    except (RuntimeError, TypeError, ValueError):
        return False
    return all(
        _is_close(fused_out, original_out)
        for fused_out, original_out in zip(actual, expected, strict=True)
    )


def _is_close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    return bool((actual - expected).float().norm() <= RELATIVE_TOLERANCE * expected.float().norm())
