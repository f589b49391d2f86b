"""SmolLM2 in plain torch, with the weights of a GGUF file and LoRA on all linear layers.

Rows and rotary pairs are in llama.cpp's order, so an adapter needs no conversion for it.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from gguf_files import GgufReader, layer_names
from torch import Tensor, nn

LORA_PARTS = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
#: Attention over queries, keys and values of shape (batch, heads, tokens, width).
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class LoraLinear(nn.Module):
    """A frozen linear layer with an adapter."""

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.register_buffer("weight", weight, persistent=False)
        self.a = nn.Parameter(torch.empty(rank, columns, dtype=torch.float32))
        self.b = nn.Parameter(torch.zeros(rows, rank, dtype=torch.float32))
        nn.init.normal_(self.a, std=columns**-0.5)
        self.scale = scale
        self.enabled = True

    def forward(self, x: Tensor) -> Tensor:
        base = F.linear(x, self.weight)
        if not self.enabled:
            return base
        low = F.linear(x, self.a.to(x.dtype))
        return base + F.linear(low, self.b.to(x.dtype)) * self.scale


class Layer(nn.Module):
    """One layer of the transformer."""

    def __init__(
        self, weights: dict[str, Tensor], heads: int, kv_heads: int, rank: int, scale: float
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        for name, part in LORA_PARTS.items():
            setattr(self, name, LoraLinear(weights[part], rank, scale))
        self.register_buffer("attn_norm", weights["attn_norm"], persistent=False)
        self.register_buffer("ffn_norm", weights["ffn_norm"], persistent=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        batch, length, _ = x.shape
        normed = rms_norm(x, self.attn_norm)
        q = rotate(self.q(normed).view(batch, length, self.heads, -1).transpose(1, 2), cos, sin)
        k = rotate(self.k(normed).view(batch, length, self.kv_heads, -1).transpose(1, 2), cos, sin)
        v = self.v(normed).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        mixed = attention(q, k, v).transpose(1, 2).reshape(batch, length, -1)
        x = x + self.o(mixed)
        normed = rms_norm(x, self.ffn_norm)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class SmolLM2(nn.Module):
    """The model. `layers` has fewer layers than the real one if the file is incomplete."""

    def __init__(
        self, path: Path, rank: int, alpha: float, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        super().__init__()
        reader = GgufReader(path)
        meta = reader.metadata
        self.rank, self.alpha, self.dtype = rank, alpha, dtype
        heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
        self.heads, self.kv_heads = heads, kv_heads
        self.width = meta["llama.embedding_length"]
        self.head_width = self.width // heads
        self.rope_base = meta["llama.rope.freq_base"]

        def load(name: str, kind: torch.dtype) -> Tensor:
            if not reader.has(f"{name}.weight"):
                shape = reader.tensors[f"{name}.weight"].shape
                return torch.randn(shape, dtype=torch.float32).mul_(0.03).to(kind)
            return torch.from_numpy(np.ascontiguousarray(reader.read(f"{name}.weight"))).to(kind)

        self.register_buffer("embedding", load("token_embd", dtype), persistent=False)
        self.register_buffer("norm", load("output_norm", torch.float32), persistent=False)
        self.numbers = list(layer_names(reader))
        self.layers = nn.ModuleList()
        for number in self.numbers:
            parts = (*LORA_PARTS.values(), "attn_norm", "ffn_norm")
            weights = {
                part: load(
                    f"blk.{number}.{part}", torch.float32 if part.endswith("norm") else dtype
                )
                for part in parts
            }
            self.layers.append(Layer(weights, heads, kv_heads, rank, alpha / rank))

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine for positions of shape (batch, tokens)."""
        half = torch.arange(0, self.head_width, 2, device=positions.device, dtype=torch.float32)
        angles = positions.float()[:, None, :, None] * self.rope_base ** (-half / self.head_width)
        return angles.cos(), angles.sin()

    def forward(self, ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Return the normalized hidden states."""
        cos, sin = self.rope(positions)
        x = F.embedding(ids, self.embedding)
        for layer in self.layers:
            x = layer(x, cos, sin, attention)
        return rms_norm(x, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embedding)

    def enable_lora(self, enabled: bool) -> None:
        for module in self.modules():
            if isinstance(module, LoraLinear):
                module.enabled = enabled

    def adapter(self) -> dict[str, np.ndarray]:
        """Return the adapter's tensors under llama.cpp's names."""
        found = {}
        for number, layer in zip(self.numbers, self.layers, strict=True):
            for name, part in LORA_PARTS.items():
                linear = getattr(layer, name)
                found[f"blk.{number}.{part}.weight.lora_a"] = (
                    linear.a.detach().float().cpu().numpy()
                )
                found[f"blk.{number}.{part}.weight.lora_b"] = (
                    linear.b.detach().float().cpu().numpy()
                )
        return found

    def load_adapter(self, tensors: dict[str, np.ndarray]) -> None:
        for number, layer in zip(self.numbers, self.layers, strict=True):
            for name, part in LORA_PARTS.items():
                linear = getattr(layer, name)
                for side, parameter in (("a", linear.a), ("b", linear.b)):
                    values = torch.from_numpy(
                        tensors[f"blk.{number}.{part}.weight.lora_{side}"].copy()
                    )
                    parameter.data.copy_(values)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    values = x.float()
    values = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-5)
    return (values * weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to adjacent pairs, as llama.cpp does for this architecture."""
    pairs = x.float().unflatten(-1, (-1, 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)
