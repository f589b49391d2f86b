"""Dovetail's attention kernels compared with plain attention, with torch and triton.

Run as a script. Input: a line of JSON, a list of trials. Output: a line of JSON, the error of each
trial. On a machine without a GPU the kernels run in Triton's interpreter (TRITON_INTERPRET=1).
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

import torch

from dovetail.engines.transformers.child import attention
from dovetail.engines.transformers.child.attention import KvPages, NewTokens, PagedBatch


@dataclass(frozen=True)
class Trial:
    """Sequences, by the number of their new tokens and of all their tokens.

    `padding`: queries that belong to no sequence.
    `splits`: forces the number of splits of the keys.
    """

    sequences: list[tuple[int, int]]
    heads: int
    kv_heads: int
    size: int
    page: int
    single: bool
    splits: int | None = None
    padding: int = 0


def error(trial: Trial) -> float:
    """Return the relative error of the kernels' result."""
    torch.manual_seed(0)
    tables, pages = _lay_out(trial)
    tokens = sum(new for new, _ in trial.sequences) + trial.padding
    query, key, value = (
        torch.randn(tokens, heads, trial.size).transpose(0, 1)
        for heads in (trial.heads, trial.kv_heads, trial.kv_heads)
    )
    batch = _batch(trial, tables, pages)
    real = tokens - trial.padding
    keys, values = pages.keys.clone(), pages.values.clone()
    keys[batch.write_slots[:real]] = key.transpose(0, 1)[:real]
    values[batch.write_slots[:real]] = value.transpose(0, 1)[:real]
    scale = trial.size**-0.5
    expected = _plain(query, keys, values, trial, batch, scale)
    actual = attention.attend(NewTokens(query, key, value), pages, batch, scale, trial.splits)[
        :real
    ]
    if not torch.equal(pages.keys[batch.read_slots], keys[batch.read_slots]):
        return float("inf")  # stored in the wrong slot
    return float((actual - expected).norm() / expected.norm())


def _lay_out(trial: Trial) -> tuple[list[list[int]], KvPages]:
    """Return pages in random order, some of them unused."""
    needed = [-(-length // trial.page) for _, length in trial.sequences]
    free = torch.randperm(sum(needed) + 3).tolist()
    tables = [[free.pop() for _ in range(count)] for count in needed]
    shape = ((sum(needed) + 3) * trial.page, trial.kv_heads, trial.size)
    trash = free.pop() * trial.page
    return tables, KvPages(torch.randn(shape), torch.randn(shape), trial.page, trash_slot=trash)


def _batch(trial: Trial, tables: list[list[int]], pages: KvPages) -> PagedBatch:
    starts_q, starts_k, slots, written = [0], [0], [], []
    for (new, length), table in zip(trial.sequences, tables, strict=True):
        places = [table[i // trial.page] * trial.page + i % trial.page for i in range(length)]
        slots += places
        written += places[length - new :]
        starts_q.append(starts_q[-1] + new)
        starts_k.append(starts_k[-1] + length)
    empty = trial.padding
    starts_q += starts_q[-1:] * empty
    starts_k += starts_k[-1:] * empty
    rows = torch.full((len(tables) + empty, max(map(len, tables))), -1, dtype=torch.int32)
    for row, table in zip(rows, tables, strict=False):
        row[: len(table)] = torch.tensor(table)
    return PagedBatch(
        torch.tensor(starts_q, dtype=torch.int32),
        torch.tensor(starts_k, dtype=torch.int32),
        rows if trial.single else None,
        torch.tensor(slots),
        torch.tensor(written + [pages.trash_slot] * trial.padding),
        (max(length for _, length in trial.sequences), max(new for new, _ in trial.sequences)),
    )


def _plain(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    trial: Trial,
    batch: PagedBatch,
    scale: float,
) -> torch.Tensor:
    actual, at_q, at_k = [], 0, 0
    group = trial.heads // trial.kv_heads
    for new, length in trial.sequences:
        slots = batch.read_slots[at_k : at_k + length]
        all_keys = keys[slots].repeat_interleave(group, 1)
        all_values = values[slots].repeat_interleave(group, 1)
        scores = torch.einsum("hqd,khd->hqk", query[:, at_q : at_q + new], all_keys) * scale
        later = torch.arange(length)[None] > torch.arange(length - new, length)[:, None]
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        actual.append(torch.einsum("hqk,khd->qhd", weights, all_values))
        at_q, at_k = at_q + new, at_k + length
    return torch.cat(actual)


def main() -> None:
    trials: list[dict[str, Any]] = json.loads(sys.stdin.readline())
    print(json.dumps([error(Trial(**trial)) for trial in trials]))


if __name__ == "__main__":
    main()
