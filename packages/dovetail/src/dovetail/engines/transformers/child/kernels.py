"""Attention over a paged KV cache, and rotary embedding, in Triton.

Attention has three kernels: store new keys and values, attend, and combine the partial results of
the splits of a long cache. A query tile contains all heads that share one KV head, so that keys are
read once. If there are few queries for a long cache, the cache is split over the processors of the
GPU.

The sequences of a batch are concatenated: `starts_q` and `starts_k` are their cumulative lengths.
The position of a key in the cache is given in one of two ways: in a batch of single queries by
`table`, the pages of each sequence; otherwise by `slots`, the slot of each position.
"""

# ruff: noqa: PLR0913, PLR0915
# A kernel takes individual arguments. Those that are known at compile time are in capitals.

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def store(
    k, v, k_cache, v_cache, table, slots, starts_k,
    k_head, k_token, v_head, v_token, cache_token, table_row,
    PAGE: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    """Store the keys and values of one token in its slot of the cache."""
    token = tl.program_id(0)
    if SINGLE:
        last = tl.load(starts_k + token + 1) - tl.load(starts_k + token) - 1
        if last < 0:
            return
        page = tl.load(table + token * table_row + last // PAGE).to(tl.int64)
        slot = page * PAGE + last % PAGE
    else:
        slot = tl.load(slots + token).to(tl.int64)
    head = tl.arange(0, BLOCK_H)[:, None]
    dim = tl.arange(0, BLOCK_D)[None, :]
    inside = (head < HEADS) & (dim < DIM)
    target = slot * cache_token + head * DIM + dim
    tl.store(k_cache + target, tl.load(k + head * k_head + token * k_token + dim, inside), inside)
    tl.store(v_cache + target, tl.load(v + head * v_head + token * v_token + dim, inside), inside)


@triton.jit
def _find_sequence(tile, starts_q, sequences, TOKENS: tl.constexpr):
    """Return the sequence of a tile. Each sequence begins a new tile."""
    low, high = 0, sequences
    while low < high:
        middle = (low + high) // 2
        first = tl.load(starts_q + middle) // TOKENS + middle
        if first <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _attend_keys(
    best, total, found, q, position, first, last,
    k_cache, v_cache, row, head, cache_token,
    PAGE: tl.constexpr, DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    SINGLE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Process the keys from `first` to `last` in one pass, with online softmax."""
    dim = tl.arange(0, BLOCK_D)[None, :]
    for start in range(first, last, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        known = key < last
        if SINGLE:
            page = tl.load(row + key // PAGE, known, other=0).to(tl.int64)
            slot = page * PAGE + key % PAGE
        else:
            slot = tl.load(row + key, known, other=0).to(tl.int64)
        place = slot[:, None] * cache_token + head * DIM + dim
        if MASKED or DIM != BLOCK_D:
            inside = known[:, None] & (dim < DIM)
            keys = tl.load(k_cache + place, inside, other=0.0)
            values = tl.load(v_cache + place, inside, other=0.0)
        else:
            keys = tl.load(k_cache + place)
            values = tl.load(v_cache + place)
        score = tl.dot(q, tl.trans(keys), input_precision="ieee")
        if MASKED:
            seen = (key[None, :] <= position[:, None]) & known[None, :]
            score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - level[:, None])
        shrink = tl.exp2(best - level)
        total = total * shrink + tl.sum(weight, 1)
        found = found * shrink[:, None] + tl.dot(
            weight.to(values.dtype), values, input_precision="ieee"
        )
        best = higher
    return best, total, found


@triton.jit(do_not_specialize=["sequences"])
def attend(
    q, k_cache, v_cache, out, parts, levels, table, slots, starts_q, starts_k,
    sequences, scale, q_head, q_token, cache_token, table_row,
    PAGE: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    """Attend with a tile of queries to one split of the keys before them."""
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if SINGLE:
        sequence, tile_token = tile, 0
    else:
        sequence = _find_sequence(tile, starts_q, sequences, TOKENS)
        tile_token = (tile - tl.load(starts_q + sequence) // TOKENS - sequence) * TOKENS
    start_q = tl.load(starts_q + sequence)
    queries = tl.load(starts_q + sequence + 1) - start_q
    if tile_token >= queries:
        return
    start_k = tl.load(starts_k + sequence)
    keys = tl.load(starts_k + sequence + 1) - start_k

    line = tl.arange(0, BLOCK_M)
    token = tile_token + line // GROUP
    valid = (line < TOKENS * GROUP) & (token < queries)
    position = keys - queries + token
    head = kv_head * GROUP + line % GROUP
    dim = tl.arange(0, BLOCK_D)
    inside = valid[:, None] & (dim < DIM)[None, :]
    q_place = head[:, None] * q_head + (start_q + token)[:, None] * q_token + dim[None, :]
    loaded = tl.load(q + q_place, inside, other=0.0)
    scaled = (loaded.to(tl.float32) * (scale * LOG2_E)).to(loaded.dtype)

    # every query of the tile attends to the keys up to this one
    before = keys - queries + tile_token
    end = tl.minimum(keys, before + TOKENS)
    chunk = tl.cdiv(tl.cdiv(end, SPLITS), BLOCK_N) * BLOCK_N
    first = split * chunk
    last = tl.minimum(first + chunk, end)
    whole = tl.maximum(first, tl.minimum(last, before + 1) // BLOCK_N * BLOCK_N)

    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    found = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row = table + sequence * table_row if SINGLE else slots + start_k
    best, total, found = _attend_keys(
        best, total, found, scaled, position, first, whole,
        k_cache, v_cache, row, kv_head, cache_token,
        PAGE, DIM, BLOCK_N, BLOCK_D, SINGLE, False,
    )  # fmt: skip
    best, total, found = _attend_keys(
        best, total, found, scaled, position, whole, last,
        k_cache, v_cache, row, kv_head, cache_token,
        PAGE, DIM, BLOCK_N, BLOCK_D, SINGLE, True,
    )  # fmt: skip
    found = found / tl.where(total == 0.0, 1.0, total)[:, None]
    place = ((start_q + token) * HEADS * GROUP + head).to(tl.int64)
    if SPLITS == 1:
        tl.store(out + place[:, None] * DIM + dim[None, :], found, inside)
    else:
        part = place * SPLITS + split
        tl.store(parts + part[:, None] * BLOCK_D + dim[None, :], found, inside)
        tl.store(levels + part, best + tl.log2(total), valid)


@triton.jit
def combine(
    parts, levels, out,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Combine the partial results of the splits for one query and head, weighted by their sums."""
    place = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, BLOCK_D)
    level = tl.load(levels + place * SPLITS + split)
    best = tl.max(level, 0)
    weight = tl.exp2(level - tl.where(best == float("-inf"), 0.0, best))
    found = tl.load(parts + (place * SPLITS + split)[:, None] * BLOCK_D + dim[None, :])
    found = tl.where(weight[:, None] > 0.0, found, 0.0)  # a split without keys left it unset
    total = tl.sum(weight, 0)
    mixed = tl.sum(found * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + place * DIM + dim, mixed, dim < DIM)


@triton.jit
def rotate(
    q, k, cos, sin, q_out, k_out,
    q_head, q_token, k_head, k_token, cos_token,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rotate the queries and keys of one token by its position, with paired halves."""
    token = tl.program_id(0)
    head = tl.arange(0, BLOCK_H)[:, None]
    dim = tl.arange(0, BLOCK_D)[None, :]
    inside = dim < HALF
    low = cos_token * token + dim
    cos_low = tl.load(cos + low, inside, other=0.0).to(tl.float32)
    cos_high = tl.load(cos + low + HALF, inside, other=0.0).to(tl.float32)
    sin_low = tl.load(sin + low, inside, other=0.0).to(tl.float32)
    sin_high = tl.load(sin + low + HALF, inside, other=0.0).to(tl.float32)
    for first in tl.static_range(2):
        if first == 0:
            place, known = head * q_head + token * q_token + dim, (head < Q_HEADS) & inside
            source, target, heads = q, q_out, Q_HEADS
        else:
            place, known = head * k_head + token * k_token + dim, (head < K_HEADS) & inside
            source, target, heads = k, k_out, K_HEADS
        left = tl.load(source + place, known, other=0.0).to(tl.float32)
        right = tl.load(source + place + HALF, known, other=0.0).to(tl.float32)
        place = (token * heads + head) * 2 * HALF + dim
        tl.store(target + place, left * cos_low - right * sin_low, known)
        tl.store(target + place + HALF, right * cos_high + left * sin_high, known)
