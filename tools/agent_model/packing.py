"""Sessions that share one head in one row, and the attention over them.

The head is computed once per row: every session attends to the head and to itself, and its
positions continue those of the head. The rows have no padding; only the attention pads groups of
sessions of similar length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from model import SmolLM2
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

GROUPS = 4
LENGTH_STEP = 32


@dataclass(frozen=True)
class Pack:
    """One row: the head, then sessions. `mask` marks the ids that are trained on."""

    head: int
    lengths: tuple[int, ...]
    ids: np.ndarray
    mask: np.ndarray

    @property
    def positions(self) -> np.ndarray:
        parts = [np.arange(self.head), *(self.head + np.arange(n) for n in self.lengths)]
        return np.concatenate(parts)


def read_shard(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def pack_shard(shard: dict[str, np.ndarray]) -> Pack:
    """Pack the sessions of a shard."""
    head = shard["head"].astype(np.int64)
    ids = np.concatenate([head, shard["ids"].astype(np.int64)])
    mask = np.concatenate([np.zeros(len(head), bool), shard["mask"]])
    return Pack(len(head), tuple(map(int, shard["lengths"])), ids, mask)


def pack_plain(texts: Sequence[Sequence[int]]) -> Pack:
    """Pack plain texts, which have no head. All ids are compared."""
    ids = np.concatenate([np.array(text, np.int64) for text in texts])
    return Pack(0, tuple(map(len, texts)), ids, np.ones(len(ids), bool))


class RowAttention:
    """The attention of one row."""

    def __init__(self, pack: Pack, device: torch.device) -> None:
        self._head = pack.head
        starts = pack.head + np.concatenate([[0], np.cumsum(pack.lengths)])[:-1]
        order = np.argsort(pack.lengths, kind="stable")
        back = np.zeros(len(pack.ids), np.int64)
        back[: pack.head] = np.arange(pack.head)
        self._groups: list[Tensor] = []
        at = pack.head
        for group in np.array_split(order, min(GROUPS, len(order))):
            longest = max(pack.lengths[n] for n in group)
            width = -(-longest // LENGTH_STEP) * LENGTH_STEP
            index = np.zeros((len(group), width), np.int64)
            for row, number in enumerate(group):
                start, length = starts[number], pack.lengths[number]
                index[row, :length] = np.arange(start, start + length)
                back[start : start + length] = at + row * width + np.arange(length)
            self._groups.append(torch.from_numpy(index).to(device))
            at += index.size
        self._back = torch.from_numpy(back).to(device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend. The tensors have the shape (1, heads, tokens, width)."""
        times = q.shape[1] // k.shape[1]
        q, k, v = q[0], k[0].repeat_interleave(times, 0), v[0].repeat_interleave(times, 0)
        outputs = []
        if self._head:
            part = [x[None, :, : self._head] for x in (q, k, v)]
            outputs.append(F.scaled_dot_product_attention(*part, is_causal=True)[0])
        for index in self._groups:
            rows, width = index.shape
            own = [x[:, index].transpose(0, 1) for x in (q, k, v)]
            shared = [x[None, :, : self._head].expand(rows, -1, -1, -1) for x in (k, v)]
            keys, values = (torch.cat(pair, 2) for pair in zip(shared, own[1:], strict=True))
            bias = causal_lower_right(width, self._head + width)
            mixed = F.scaled_dot_product_attention(
                own[0].contiguous(), keys, values, attn_mask=bias
            )
            outputs.append(mixed.transpose(0, 1).flatten(1, 2))
        return torch.cat(outputs, 1)[:, self._back][None]


def run_pack(model: SmolLM2, pack: Pack) -> Callable[[], Tensor]:
    """Return a function that runs a row and returns its hidden states, of shape (tokens, width)."""
    device = model.embedding.device
    attention = RowAttention(pack, device)
    ids = torch.from_numpy(pack.ids).to(device)[None]
    positions = torch.from_numpy(pack.positions).to(device)[None]
    return lambda: model(ids, positions, attention)[0]
