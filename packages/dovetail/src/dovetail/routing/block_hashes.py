"""Hashes of the blocks of a prompt, as Dynamo and vLLM compute them.

An engine caches a prompt in blocks of a fixed number of tokens and finds them by a hash over all
tokens up to the end of a block. Only complete blocks have hashes.

Dynamo:  block    = xxh3_64(ids as little-endian u32, seed)
         sequence = xxh3_64(parent sequence, block; little-endian u64, seed 1337), the first = block
vLLM:    block    = hash((parent, ids, extra keys)), the first parent = hash(seed)
"""

import hashlib
import pickle
import struct
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import xxhash

from dovetail.engines.token_ids import pack_token_ids

DEFAULT_DYNAMO_SEED = 1337
DEFAULT_VLLM_SEED = "vllm-none-hash"  # of vLLM if PYTHONHASHSEED is not set

_TOKEN_BYTES = 4
_LORA_SEED, _SALT_SEED = 0, 1  # of the hashes that Dynamo adds to the seed of a block
_MASK_64 = (1 << 64) - 1
_CHAIN = struct.Struct("<QQ")


class DynamoHashes(NamedTuple):
    """Hashes of the complete blocks of a prompt, unsigned.

    `blocks`: of each block alone.
    `sequences`: of each prefix that ends with the block.
    """

    blocks: list[int]
    sequences: list[int]

    def truncated(self, count: int) -> "DynamoHashes":
        """Return the hashes of the first `count` blocks, which are shared with another prompt."""
        return DynamoHashes(self.blocks[:count], self.sequences[:count])


def hash_dynamo_blocks(
    ids: "array[int]",
    block_size: int,
    known: DynamoHashes | None = None,
    *,
    seed: int = DEFAULT_DYNAMO_SEED,
    cache_salt: str | None = None,
    lora_name: str | None = None,
) -> DynamoHashes:
    """Compute the hashes of a prompt as Dynamo's router does.

    `known`: the hashes of the first blocks, which are not computed again.
    """
    block_seed = seed
    if lora_name:
        block_seed += xxhash.xxh3_64_intdigest(_encode(lora_name), _LORA_SEED)
    if cache_salt:
        block_seed += xxhash.xxh3_64_intdigest(_encode(cache_salt), _SALT_SEED)
    block_seed &= _MASK_64
    blocks, sequences = ([], []) if known is None else (known.blocks[:], known.sequences[:])
    step = block_size * _TOKEN_BYTES
    data = memoryview(pack_token_ids(ids[len(blocks) * block_size :]))
    for start in range(0, len(data) - step + 1, step):
        block = xxhash.xxh3_64_intdigest(data[start : start + step], block_seed)
        parent = _CHAIN.pack(sequences[-1], block) if sequences else None
        sequences.append(block if parent is None else xxhash.xxh3_64_intdigest(parent, seed))
        blocks.append(block)
    return DynamoHashes(blocks, sequences)


def to_signed(value: int) -> int:
    """Return an unsigned 64-bit hash as a signed integer, as Dynamo's Python interface wants it."""
    return value - (1 << 64) if value >> 63 else value


def hash_vllm_blocks(
    ids: "array[int]",
    block_size: int,
    algorithm: str = "sha256",
    *,
    seed: str = DEFAULT_VLLM_SEED,
    cache_salt: str | None = None,
) -> list[bytes]:
    """Compute the hashes of a prompt as vLLM does with this `--prefix-caching-hash-algo`.

    `seed`: the value of PYTHONHASHSEED in the environment of vLLM. Without it, vLLM uses a fixed
    seed for sha256 and a random one for xxhash.
    """
    digest = VLLM_ALGORITHMS[algorithm]
    hashes = [digest(seed)]
    # The hash of the first block makes all later ones depend on the salt.
    extra_keys = (("cache_salt", cache_salt),) if cache_salt else None
    for start in range(0, len(ids) - block_size + 1, block_size):
        hashes.append(digest((hashes[-1], tuple(ids[start : start + block_size]), extra_keys)))
        extra_keys = None
    return hashes[1:]


def to_event_hash(block_hash: bytes) -> int:
    """Return a hash of vLLM as its KV events have it: an integer of the last 64 bits.

    Events have the complete hash if VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES is 0.
    """
    return int.from_bytes(block_hash[-8:], "big")


def _pickle(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)  # the highest protocol of all versions that run vLLM


def encode_cbor(value: object) -> bytes:
    """Encode what vLLM hashes as canonical CBOR (RFC 8949): counts, text, bytes and lists."""
    match value:
        case None:
            return b"\xf6"
        case int():
            return _cbor_head(0, value)
        case bytes():
            return _cbor_head(2, len(value)) + value
        case str():
            text = _encode(value)
            return _cbor_head(3, len(text)) + text
        case tuple():
            return _cbor_head(4, len(value)) + b"".join(map(encode_cbor, value))
    raise TypeError(f"cannot encode {type(value).__name__}")


def _cbor_head(major: int, value: int) -> bytes:
    """Encode a type and its value or length in the fewest bytes."""
    if value < 24:
        return bytes([major << 5 | value])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * size:
            return bytes([major << 5 | code]) + value.to_bytes(size, "big")
    raise ValueError(f"must be below 2**64, got {value}")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


#: The values of vLLM's `--prefix-caching-hash-algo`.
VLLM_ALGORITHMS: dict[str, Callable[[Any], bytes]] = {
    "sha256": lambda value: _sha256(_pickle(value)),
    "sha256_cbor": lambda value: _sha256(encode_cbor(value)),
    "xxhash": lambda value: xxhash.xxh3_128_digest(_pickle(value)),
    "xxhash_cbor": lambda value: xxhash.xxh3_128_digest(encode_cbor(value)),
}
