"""Token ids as bytes."""

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engines import token_ids
from dovetail.engines.token_ids import max_token_id, pack_token_ids, unpack_token_ids

IDS = st.lists(st.integers(0, 2**32 - 1))


@given(IDS)
def test_ids_are_packed_little_endian(ids: list[int]) -> None:
    given = array("I", ids)
    assert pack_token_ids(given) == b"".join(id.to_bytes(4, "little") for id in ids)
    assert unpack_token_ids(pack_token_ids(given)) == given


@given(IDS)
def test_big_endian_machine_swaps_bytes(ids: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_ids, "sys", SimpleNamespace(byteorder="big", modules={}))
        given = array("I", ids)
        swapped = b"".join(id.to_bytes(4, "little")[::-1] for id in ids)
        assert pack_token_ids(given) == swapped
        assert given == array("I", ids)
        assert unpack_token_ids(swapped) == given


def test_incomplete_id_is_an_error() -> None:
    with pytest.raises(ValueError, match="multiple"):
        unpack_token_ids(b"12345")


@given(IDS.filter(bool))
def test_max_token_id_with_and_without_numpy(ids: list[int]) -> None:
    class Numbers:
        """The part of numpy that is used."""

        uint32 = "uint32"

        @staticmethod
        def frombuffer(data: Any, kind: str) -> Any:
            assert kind == "uint32"
            return SimpleNamespace(max=lambda: max(memoryview(data).cast("B").cast("I")))

    for modules in ({}, {"numpy": Numbers}):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(token_ids, "sys", SimpleNamespace(modules=modules))
            assert max_token_id(array("I", ids)) == max(ids)
