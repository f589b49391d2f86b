"""Block hashes equal those that vLLM 0.32 and Dynamo 1.6 computed for the same tokens.

The values were recorded from `hash_block_tokens` of vLLM and from Dynamo's `SelectionService`.
"""

from array import array

import pytest

from dovetail.routing.block_hashes import (
    DEFAULT_VLLM_SEED,
    encode_cbor,
    hash_dynamo_blocks,
    hash_vllm_blocks,
    to_event_hash,
    to_signed,
)

#: Two complete blocks of 16 and a rest; ids at the limits of CBOR's lengths.
IDS = array("I", [*range(100, 110), 70000, 151643, 0, 255, 256, 23, 24, *range(300, 323)])
DYNAMO_IDS = array("I", range(100, 140))

VLLM: list[tuple[str, str | None, str | None, list[str]]] = [
    (
        "sha256",
        None,
        None,
        [
            "00c1b0cbe0bcebdc4a3501f11ac928bd38f5ff2101c79c6d204ae783a9094a14",
            "28f4916b9b732756610a00f7cc682e1561fb83482a47e0ded060f56c2afbedce",
        ],
    ),
    (
        "sha256",
        "0",
        "6:tenant/",
        [
            "3123f345f2f78e012c28ab6b0d391ab7b0d693ed136a52cfa799bb4c40b2db9a",
            "1a6ef0240e0fa26743ae5a9e974c8a5511e4ecf5d6a487c1f0bdbce86ce97186",
        ],
    ),
    (
        "sha256",
        "42",
        None,
        [
            "1a0c27ea40b50c78f82216d87bb480077accf0323270b1b676f6a89f42676606",
            "55393356d6b7c35ba157fd23b3ee34a82299ce90fe2274514aa4050c72e5358a",
        ],
    ),
    (
        "sha256_cbor",
        None,
        None,
        [
            "aeb63c53d75c85a73f26a8245f3a6087a30f166eb6ec183373bacf3e5e03d1d9",
            "e4f7fb7d5c0fc56eb303f0f90327b43d8ce9c40961a11f5cb3609d877b7512f0",
        ],
    ),
    (
        "sha256_cbor",
        "0",
        "6:tenant/",
        [
            "0327f1dc76757c0084fdb3d306f7c02d62af8f7c4c1db4fe54202a1fef32667b",
            "471640681b72616c6c757f0bddf7df3355eefa3723d0acf2a7f19bb58d85a76a",
        ],
    ),
    (
        "xxhash",
        "0",
        "6:tenant/",
        [
            "e9f40156a09af39e0503f185ee6da37d",
            "1699d7c5f8efc9c7a6d0d6b2c755394f",
        ],
    ),
    (
        "xxhash_cbor",
        "0",
        "6:tenant/",
        [
            "7f70e37d250316623b88ca8760a6a250",
            "50ea1c446331b9e60fd110b186da689e",
        ],
    ),
]

DYNAMO: list[tuple[str | None, str | None, list[int]]] = [
    (None, None, [-7623552809318391097, 4102179227871607950]),
    ("tenant-a", None, [7939687151982338459, 7124340667566070663]),
    (None, "ad", [682217097734764133, 5019902133056655779]),
    ("tenant-a", "ad", [-5102042213738711790, -6713442731951723056]),
]


@pytest.mark.parametrize(("algorithm", "seed", "salt", "expected"), VLLM)
def test_vllm_hashes(
    algorithm: str, seed: str | None, salt: str | None, expected: list[str]
) -> None:
    hashes = hash_vllm_blocks(IDS, 16, algorithm, seed=seed or DEFAULT_VLLM_SEED, cache_salt=salt)
    assert [one.hex() for one in hashes] == expected


def test_events_of_vllm_have_the_last_64_bits() -> None:
    whole = bytes(range(32))
    assert to_event_hash(whole) == int.from_bytes(whole, "big") & ((1 << 64) - 1)


@pytest.mark.parametrize(("salt", "lora", "expected"), DYNAMO)
def test_dynamo_hashes(salt: str | None, lora: str | None, expected: list[int]) -> None:
    hashes = hash_dynamo_blocks(DYNAMO_IDS, 16, cache_salt=salt, lora_name=lora)
    assert [to_signed(one) for one in hashes.sequences] == expected


def test_dynamo_hashes_of_blocks_alone() -> None:
    # compute_block_hash_for_seq of Dynamo
    assert hash_dynamo_blocks(DYNAMO_IDS, 16).blocks == [10823191264391160519, 1219978239041041138]


@pytest.mark.parametrize("known", range(4))
@pytest.mark.parametrize("size", [1, 5, 8])
def test_known_hashes_are_extended(known: int, size: int) -> None:
    whole = hash_dynamo_blocks(DYNAMO_IDS, size, cache_salt="salt")
    first = whole.truncated(known)
    extended = hash_dynamo_blocks(DYNAMO_IDS, size, first, cache_salt="salt")
    assert extended == whole
    assert first == whole.truncated(known)  # the hashes of another prompt stay as they were


@pytest.mark.parametrize("count", [0, 15])
def test_incomplete_blocks_have_no_hash(count: int) -> None:
    assert hash_vllm_blocks(IDS[:count], 16) == []
    assert hash_dynamo_blocks(IDS[:count], 16) == ([], [])


def test_unknown_values_are_not_encoded() -> None:
    with pytest.raises(TypeError, match="float"):
        encode_cbor((b"", 1.5))
    with pytest.raises(ValueError, match="2\\*\\*64"):
        encode_cbor(1 << 64)
