"""Entries for the tests of the ledger."""

from array import array
from collections.abc import Iterable

import msgspec
from hypothesis import strategies as st

from dovetail.ledger.entry import LOGPROB_TYPECODE, EntrySpan, LedgerEntry, pack_ids


def pack_logprobs(values: Iterable[float]) -> bytes:
    """Pack log probabilities in the format of an entry."""
    return array(LOGPROB_TYPECODE, values).tobytes()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=40).map(pack_ids)
HASH = st.binary(min_size=16, max_size=16)

SPANS = st.builds(
    EntrySpan,
    kind=st.sampled_from(["text", "reasoning", "call"]),
    raw=TEXT,
    shown=TEXT,
    tokens=st.integers(0, 2**31),
    name=TEXT,
    id=TEXT,
    own_id=st.none() | TEXT,
    namespace=st.none() | TEXT,
    custom=st.booleans(),
    complete=st.booleans(),
)

ENTRIES = st.builds(
    LedgerEntry,
    id=st.uuids().map(lambda made: made.hex),
    tenant=st.sampled_from(["", "a", "b", "ü{}:*"]),
    model=TEXT,
    parent=st.none() | TEXT,
    prefix_tokens=st.integers(0, 2**31),
    suffix=IDS,
    generated=IDS,
    stop=st.none() | st.integers(0, 2**32 - 1),
    spans=st.lists(SPANS, max_size=4).map(tuple),
    chain_before=HASH,
    chain=HASH,
    head=HASH,
    finish=st.sampled_from(["stop", "length", "tool_calls"]),
    created=st.floats(0, 2e9),
    session=TEXT,
    agent=TEXT,
    response_number=st.sampled_from(["", "00ff"]),
    logprobs=st.lists(st.floats(-20, 0, width=32), max_size=8).map(pack_logprobs),
    forced=st.lists(st.tuples(st.integers(0, 9), st.integers(10, 20)), max_size=2).map(tuple),
)


def call(id: str) -> EntrySpan:
    """A call with that public id."""
    return EntrySpan("call", '{"name": "read"}', "{}", name="read", id=id)


def turn(id: str, calls: tuple[str, ...] = (), **changes: object) -> LedgerEntry:
    """An entry with the fields that a test needs."""
    plain = LedgerEntry(
        id=id,
        tenant="t",
        model="m",
        parent=None,
        prefix_tokens=0,
        suffix=b"",
        generated=b"",
        stop=2,
        spans=tuple(map(call, calls)),
        chain_before=b"before",
        chain=b"chain",
        head=b"head",
    )
    return msgspec.structs.replace(plain, **changes)
