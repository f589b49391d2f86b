"""Attention over a paged batch, as transformers calls it, with Dovetail's kernels.

Without the flash-attention package, transformers gathers the KV cache again in every layer and
masks each sequence against all others. These kernels read each key once, in place. Long runs of new
tokens, which share each key, use torch's flash attention, whose matrix multiplication is faster.
"""

from functools import cache
from inspect import signature
from typing import Any, NamedTuple

import torch
import triton

from dovetail.engines.transformers.child import kernels

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch before 2.10
    varlen_attn = None

#: transformers creates no mask for a name that contains "flash". Its older versions require the
#: prefix for paged attention.
NAME, OLD_NAME = "dovetail_flash", "paged|dovetail_flash"

QUERY_TILE_ROWS, DECODE_TILE_ROWS = 64, 16  # rows of queries and heads
KEYS_PER_STEP = 64
#: Programs per streaming multiprocessor, for prefill and decode. A launch ends with its last
#: program, so long-running programs should be split into many.
PREFILL_PROGRAMS_PER_SM, DECODE_PROGRAMS_PER_SM = 16, 4
SPLIT_COUNTS = (64, 16, 8, 4, 2)  # few values, because each requires compiling a kernel
MIN_KEYS_PER_SPLIT = 128
MIN_FLASH_TOKENS = 1024  # new tokens


class NewTokens(NamedTuple):
    """Queries, keys and values of the new tokens, each of the shape [heads, tokens, size]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class KvPages(NamedTuple):
    """A layer's part of the KV cache: one row per slot, `page_size` slots per page.

    `group`: the index of its kind of layers in the lists of a batch.
    `trash_slot`: a slot to which padding is written.
    """

    keys: torch.Tensor
    values: torch.Tensor
    page_size: int
    group: int = 0
    trash_slot: int = 0


class PagedBatch(NamedTuple):
    """The positions of a batch's sequences in the queries and in the cache.

    `block_table`: if set, every sequence has one query.
    `read_slots`: otherwise, the slot of each position of each sequence.
    `write_slots`: the slots of the new positions.
    `max_lengths`: the lengths of the longest sequence and of the longest new part.
    """

    starts_q: torch.Tensor
    starts_k: torch.Tensor
    block_table: torch.Tensor | None
    read_slots: torch.Tensor
    write_slots: torch.Tensor
    max_lengths: tuple[int, int]


class FlashAttention:
    """torch's flash attention, if it is available and supports the model."""

    def __init__(self) -> None:
        self.is_usable = varlen_attn is not None
        known = signature(varlen_attn).parameters if varlen_attn is not None else {}
        # Newer versions require a flag for heads that share keys.
        self._extra_arguments = {"enable_gqa": True} if "enable_gqa" in known else {}

    def attend(
        self, query: torch.Tensor, pages: KvPages, batch: PagedBatch, scale: float
    ) -> torch.Tensor:
        keys = pages.keys.index_select(0, batch.read_slots)
        values = pages.values.index_select(0, batch.read_slots)
        longest_k, longest_q = batch.max_lengths
        found: torch.Tensor = varlen_attn(
            query.transpose(0, 1).contiguous(), keys, values,
            batch.starts_q.to(torch.int32), batch.starts_k.to(torch.int32), longest_q, longest_k,
            scale=scale, window_size=(-1, 0), **self._extra_arguments,
        )  # fmt: skip
        return found

    def check_support(self, query: torch.Tensor, pages: KvPages, batch: PagedBatch) -> None:
        """Try it once, when a failure is harmless: it supports few dtypes and few GPUs."""
        if self.is_usable and query.is_cuda:
            try:
                self.attend(query, pages, batch, 1.0)
                torch.cuda.synchronize(query.device)
            except (RuntimeError, TypeError, ValueError):
                self.is_usable = False


flash = FlashAttention()


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Store the new keys and values and attend to all. Tensors are [1, heads, tokens, size]."""
    pages = pages_of(kwargs["cache"], module.layer_idx)
    scale = kwargs.get("scaling")
    out = attend(
        NewTokens(query[0], key[0], value[0]),
        pages,
        _build_batch(kwargs, pages.group),
        scale if scale is not None else query.shape[-1] ** -0.5,
    )
    return out[None], None


def _build_batch(arguments: dict[str, Any], group: int) -> PagedBatch:
    table, written, read = (
        arguments["block_table"],
        arguments["write_index"],
        arguments["read_index"],
    )
    return PagedBatch(
        arguments["cu_seq_lens_q"],
        _full_attention_value(arguments["cu_seq_lens_k"]),
        table[group] if table is not None else None,
        read[group] if read[group].numel() else written[group],  # only new tokens
        written[group],
        (_max_length(arguments, "k"), _max_length(arguments, "q")),
    )


def pages_of(cache: Any, layer: int) -> KvPages:
    """Return a layer's keys and values in the library's cache, for both of its known layouts."""
    if hasattr(cache, "layer_to_allocator"):
        allocator = cache.layer_to_allocator[layer]
        keys, values = allocator._kv_token_views[layer]
        trash = allocator.write_trash_index
        return KvPages(keys, values, allocator.tokens_per_page, allocator.index, trash)
    group, place = cache.layer_index_to_group_indices[layer]
    keys, values = cache.key_cache[place], cache.value_cache[place]
    return KvPages(keys, values, cache.block_size, group, cache.write_trash_index)


def attend(
    new: NewTokens, pages: KvPages, batch: PagedBatch, scale: float, splits: int | None = None
) -> torch.Tensor:
    """Return the attention output of the new tokens, [tokens, heads, size].

    `splits` are chosen to fill the GPU.
    """
    _store(new, pages, batch)
    query = new.query
    if (
        batch.block_table is None
        and batch.max_lengths[1] >= MIN_FLASH_TOKENS
        and flash.is_usable
        and query.is_cuda
    ):
        return flash.attend(query, pages, batch, scale)
    heads, tokens, size = query.shape
    kv_heads, sequences, single = (
        len(new.key),
        len(batch.starts_q) - 1,
        batch.block_table is not None,
    )
    group = heads // kv_heads
    rows = max(DECODE_TILE_ROWS if single else QUERY_TILE_ROWS, triton.next_power_of_2(group))
    full = sequences if single else tokens // (rows // group) + 1
    tiles = sequences if single else full + sequences  # each sequence with tokens begins a tile
    if splits is None:
        wanted = (DECODE_PROGRAMS_PER_SM if single else PREFILL_PROGRAMS_PER_SM) * _sm_count(
            query.device
        )
        splits = _choose_splits(
            wanted // (full * kv_heads), None if single else batch.max_lengths[0]
        )
    table = batch.block_table if batch.block_table is not None else batch.read_slots
    block = _block_size(size)
    out = torch.empty((tokens, heads, size), dtype=query.dtype, device=query.device)
    parts, levels = out, out
    if splits > 1:
        parts = out.new_empty((tokens, heads, splits, block), dtype=torch.float32)
        levels = out.new_empty((tokens, heads, splits), dtype=torch.float32)
    kernels.attend[(tiles, kv_heads, splits)](
        query, pages.keys, pages.values, out, parts, levels, table, batch.read_slots,
        batch.starts_q, batch.starts_k, sequences, scale,
        query.stride(0), query.stride(1), pages.keys.stride(0), table.stride(0),
        PAGE=pages.page_size, HEADS=kv_heads, GROUP=group, DIM=size,
        BLOCK_M=rows, BLOCK_N=KEYS_PER_STEP, BLOCK_D=block, SPLITS=splits, SINGLE=single,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        kernels.combine[(tokens * heads,)](
            parts, levels, out, DIM=size, BLOCK_D=block, SPLITS=splits, num_warps=2
        )
    return out


def compile_kernels(pages: KvPages, heads: int) -> None:
    """Compile every kernel that may be needed, which takes seconds the first time."""
    kv_heads, size = pages.keys.shape[1:]
    with torch.device(pages.keys.device):
        new = torch.zeros((1, heads + 2 * kv_heads, size), dtype=pages.keys.dtype).transpose(0, 1)
        parts = NewTokens(*new.split((heads, kv_heads, kv_heads)))
        starts, slot = torch.tensor([0, 1], dtype=torch.int32), torch.full((1,), pages.trash_slot)
        table = (slot // pages.page_size).to(torch.int32).expand(1, 16)
        for splits in (*SPLIT_COUNTS, 1):
            for single in (table, None):
                batch = PagedBatch(starts, starts, single, slot, slot, (1, 1))
                attend(parts, pages, batch, 1.0, splits)
        flash.check_support(parts.query, pages, batch)


def _store(new: NewTokens, pages: KvPages, batch: PagedBatch) -> None:
    key, value = new.key, new.value
    kv_heads, tokens, size = key.shape
    table = batch.block_table if batch.block_table is not None else batch.read_slots
    kernels.store[(tokens,)](
        key, value, pages.keys, pages.values, table, batch.write_slots, batch.starts_k,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        pages.keys.stride(0), table.stride(0),
        PAGE=pages.page_size, HEADS=kv_heads, DIM=size, BLOCK_H=triton.next_power_of_2(kv_heads),
        BLOCK_D=_block_size(size), SINGLE=batch.block_table is not None,
    )  # fmt: skip


def _choose_splits(wanted: int, max_length: int | None) -> int:
    """Return how many parts the keys are split into. `max_length` may be unknown."""
    if max_length is not None:
        wanted = min(wanted, max_length // MIN_KEYS_PER_SPLIT)
    return next((splits for splits in SPLIT_COUNTS if splits <= wanted), 1)


@cache
def _sm_count(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _block_size(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def _full_attention_value(lengths: Any) -> Any:
    """Return the value for layers with full attention, if several kinds of layers are listed."""
    return lengths["full_attention"] if isinstance(lengths, dict) else lengths


def _max_length(arguments: dict[str, Any], of: str) -> int:
    """Return the length of the longest sequence, by either of the library's names for it."""
    name = f"max_length_{of}"
    return int(
        _full_attention_value(
            arguments[name] if name in arguments else arguments[f"max_seqlen_{of}"]
        )
    )


class BlockTables:
    """The rows of a batch's block table. Entries after a sequence's last page are undefined."""

    def __init__(self, allocator: Any, table: torch.Tensor) -> None:
        self._allocator = allocator
        self._device = table
        self._host = torch.zeros_like(table, device="cpu", pin_memory=table.is_cuda)
        self._rows: list[list[int]] = [[]] * len(table)
        self._filled = 0
        allocator.fill_block_table = self.fill

    def fill(self, name: str, past_length: int, query_length: int, row: torch.Tensor) -> None:
        """Fill one row of the table, identified by `row`. Replaces the allocator's own method."""
        blocks: list[int] = self._allocator.block_table[name]
        place = (row.storage_offset() - self._device.storage_offset()) // self._device.stride(0)
        self._filled = max(self._filled, place + 1)
        if blocks != self._rows[place]:
            self._rows[place] = blocks.copy()
            entries = torch.tensor(blocks, dtype=self._host.dtype) * self._page_stride()
            self._host[place, : len(blocks)] = entries

    def send(self) -> None:
        """Copy to the device. The host waits, so that all streams see the copied data."""
        if self._filled:
            self._device[: self._filled].copy_(self._host[: self._filled])
            self._filled = 0

    def _page_stride(self) -> int:
        """Return the distance in pages between a layer's blocks, in the library's newer layout."""
        stride = getattr(self._allocator, "block_physical_stride", None)
        return 1 if stride is None else int(stride // self._allocator.tokens_per_page)


def gather_tables(processor: Any) -> None:
    """Copy a batch's block table in one transfer, for models with full attention in all layers."""
    cache, batch = processor.cache, processor.inputs_and_outputs
    legacy_managers = getattr(cache, "group_cache_managers", None)
    allocators = (
        legacy_managers if legacy_managers is not None else list(cache.cache_allocators.values())
    )
    if len(allocators) != 1 or not batch.block_table.numel():
        return
    tables, prepare = BlockTables(allocators[0], batch.block_table[0]), batch.prepare_batch_tensors

    def prepared(*arguments: Any, **keywords: Any) -> None:
        prepare(*arguments, **keywords)
        tables.send()

    batch.prepare_batch_tensors = prepared
