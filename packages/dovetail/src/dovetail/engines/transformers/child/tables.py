"""The pages of each sequence, told to the device in one copy for a whole batch.

The library sends them row by row, which takes a third of a step of 64 sequences. They hardly
change: a sequence takes a new page once in so many tokens. So they are kept on the host, and what
is there already is not written again.
"""

from typing import Any

import torch


class BlockTables:
    """The rows of a batch's table of pages. Entries behind a sequence's last page mean nothing."""

    def __init__(self, allocator: Any, table: torch.Tensor) -> None:
        self._allocator = allocator
        self._device = table
        self._host = torch.zeros_like(table, device="cpu", pin_memory=table.is_cuda)
        self._rows: list[list[int]] = [[]] * len(table)
        self._filled = 0
        allocator.fill_block_table = self.fill

    def fill(self, name: str, past_length: int, query_length: int, row: torch.Tensor) -> None:
        """In the place of the allocator's own. `row` tells which one it is."""
        blocks: list[int] = self._allocator.block_table[name]
        place = (row.storage_offset() - self._device.storage_offset()) // self._device.stride(0)
        self._filled = max(self._filled, place + 1)
        if blocks != self._rows[place]:
            self._rows[place] = blocks.copy()
            entries = torch.tensor(blocks, dtype=self._host.dtype) * self._page_stride()
            self._host[place, : len(blocks)] = entries

    def send(self) -> None:
        """To the device. The host waits, so that what runs on any stream comes after."""
        if self._filled:
            self._device[: self._filled].copy_(self._host[: self._filled])
            self._filled = 0

    def _page_stride(self) -> int:
        """Pages that the blocks of one layer lie apart, in the newer of the library's layouts."""
        apart = getattr(self._allocator, "block_physical_stride", None)
        return 1 if apart is None else int(apart // self._allocator.tokens_per_page)


def gather_tables(processor: Any) -> None:
    """Makes a batch's table be sent at once, for a model whose layers all see everything."""
    cache, batch = processor.cache, processor.inputs_and_outputs
    old = getattr(cache, "group_cache_managers", None)
    allocators = old if old is not None else list(cache.cache_allocators.values())
    if len(allocators) != 1 or not batch.block_table.numel():
        return
    tables, prepare = BlockTables(allocators[0], batch.block_table[0]), batch.prepare_batch_tensors

    def prepared(*given: Any, **more: Any) -> None:
        prepare(*given, **more)
        tables.send()

    batch.prepare_batch_tensors = prepared
