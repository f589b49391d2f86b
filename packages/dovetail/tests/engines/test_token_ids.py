"""Ids as bytes."""

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engines import token_ids as packing
from dovetail.engines.token_ids import max_token_id, pack_token_ids, unpack_token_ids

IDS = st.lists(st.integers(0, 2**32 - 1))


@given(IDS)
def test_four_bytes_for_each_the_lowest_first(ids: list[int]) -> None:
    given = array("I", ids)
    assert pack_token_ids(given) == b"".join(id.to_bytes(4, "little") for id in ids)
    assert unpack_token_ids(pack_token_ids(given)) == given


@given(IDS)
def test_a_machine_that_has_them_the_other_way_round_turns_them(ids: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "sys", SimpleNamespace(byteorder="big", modules={}))
        given = array("I", ids)
        turned = b"".join(id.to_bytes(4, "little")[::-1] for id in ids)
        assert pack_token_ids(given) == turned
        assert given == array("I", ids)
        assert unpack_token_ids(turned) == given


def test_bytes_that_are_no_ids() -> None:
    with pytest.raises(ValueError, match="multiple"):
        unpack_token_ids(b"12345")


@given(IDS.filter(bool))
def test_the_highest_by_whatever_is_at_hand(ids: list[int]) -> None:
    class Numbers:
        """As much of numpy as is asked for."""

        uint32 = "uint32"

        @staticmethod
        def frombuffer(data: Any, kind: str) -> Any:
            assert kind == "uint32"
            return SimpleNamespace(max=lambda: max(memoryview(data).cast("B").cast("I")))

    for at_hand in ({}, {"numpy": Numbers}):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing, "sys", SimpleNamespace(modules=at_hand))
            assert max_token_id(array("I", ids)) == max(ids)
