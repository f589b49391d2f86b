"""Greedy or sampled generation for many sequences at once, with a cache per sequence."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from model import SmolLM2
from torch import Tensor


class BatchEngine:
    """Keys and values of `count` sequences, each with its own length."""

    def __init__(self, model: SmolLM2, count: int, window: int) -> None:
        self.model, self.window = model, window
        shape = (len(model.layers), count, model.kv_heads, window, model.head_width)
        device = model.embedding.device
        self._keys = torch.zeros(shape, dtype=model.dtype, device=device)
        self._values = torch.zeros(shape, dtype=model.dtype, device=device)
        self._ids: list[list[int]] = [[] for _ in range(count)]

    def generate(
        self, prompts: Mapping[int, Sequence[int]], limit: int, stop: int, temperature: float = 0.0
    ) -> dict[int, list[int]]:
        """Continue the prompts of sequences, by number. Outputs include the stop token."""
        with torch.no_grad():
            return self._generate(prompts, limit, stop, temperature)

    def _generate(
        self, prompts: Mapping[int, Sequence[int]], limit: int, stop: int, temperature: float
    ) -> dict[int, list[int]]:
        rows = sorted(prompts)
        last = self._prefill(rows, [list(prompts[row]) for row in rows])
        outputs: dict[int, list[int]] = {row: [] for row in rows}
        active = list(rows)
        logits = last
        for _ in range(limit):
            chosen = self._choose(logits, temperature).tolist()
            for row, id in zip(active, chosen, strict=True):
                outputs[row].append(id)
            keep = [
                at
                for at, (row, id) in enumerate(zip(active, chosen, strict=True))
                if id != stop and len(self._ids[row]) + 1 < self.window
            ]
            if not keep:
                break
            active = [active[at] for at in keep]
            new = torch.tensor([[chosen[at]] for at in keep], device=logits.device)
            logits = self._forward(active, new, [1] * len(active))
            for at, row in zip(keep, active, strict=True):
                self._ids[row].append(chosen[at])
        return outputs

    def _choose(self, logits: Tensor, temperature: float) -> Tensor:
        if temperature == 0:
            return logits.argmax(-1)
        return torch.multinomial(F.softmax(logits.float() / temperature, -1), 1)[:, 0]

    def _prefill(self, rows: list[int], prompts: list[list[int]], group: int = 16) -> Tensor:
        """Compute what the cache lacks of the prompts. Returns the logits of their ends."""
        found = []
        for start in range(0, len(rows), group):
            part, texts = rows[start : start + group], prompts[start : start + group]
            for row, ids in zip(part, texts, strict=True):
                known = self._ids[row]
                same = next(
                    (at for at, (a, b) in enumerate(zip(known, ids, strict=False)) if a != b),
                    min(len(known), len(ids)),
                )
                self._ids[row] = ids[: min(same, len(ids) - 1)]
            news = [ids[len(self._ids[row]) :] for row, ids in zip(part, texts, strict=True)]
            longest = max(map(len, news))
            padded = torch.tensor(
                [new + [0] * (longest - len(new)) for new in news], device=self._keys.device
            )
            found.append(self._forward(part, padded, list(map(len, news))))
            for row, ids in zip(part, texts, strict=True):
                self._ids[row] = ids
        return torch.cat(found)

    def _forward(self, rows: list[int], new: Tensor, lengths: list[int]) -> Tensor:
        """Run new ids, each row after its own. Returns the logits at the last of each row."""
        device, (count, longest) = new.device, new.shape
        index = torch.tensor(rows, device=device)
        starts = torch.tensor([len(self._ids[row]) for row in rows], device=device)
        positions = starts[:, None] + torch.arange(longest, device=device)[None]
        positions = positions.clamp(max=self.window - 1)
        reach = min(
            self.window, -(-(max(len(self._ids[row]) for row in rows) + longest) // 64) * 64
        )
        mask = torch.arange(reach, device=device)[None, None, None] <= positions[:, None, :, None]
        layer = -1

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            nonlocal layer
            layer += 1
            at = (index[:, None], slice(None), positions)
            self._keys[layer][at] = k.transpose(1, 2)
            self._values[layer][at] = v.transpose(1, 2)
            keys = self._keys[layer][index, :, :reach].repeat_interleave(3, 1)
            values = self._values[layer][index, :, :reach].repeat_interleave(3, 1)
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

        hidden = self.model(new, positions, attention)
        ends = torch.tensor(lengths, device=device) - 1
        return self.model.logits(hidden[torch.arange(count, device=device), ends])
