"""Where entries are kept: the seam, and what its three forms share."""

import re
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
import zstandard

from dovetail.ledger.entry import LedgerEntry
from dovetail.storage.faults import StoreError as StoreError
from dovetail.storage.faults import StoreFaults

DAY_SECONDS = 86_400.0
MAX_AGE_SECONDS = 7 * DAY_SECONDS  # seconds since an entry was last used
MAX_LOOKUP_IDS = 8  # the most ids a look-up by call or chain answers with
MAX_SESSION_TURNS = 65_536  # the most ids a look-up by session answers with
MAX_LISTED_SESSIONS = 10_000  # the most sessions of a tenant that are listed

Clock = Callable[[], float]

_NON_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]+")


class LedgerStats(msgspec.Struct, frozen=True):
    """What a store holds now."""

    entries: int
    bytes: int


class SessionStats(msgspec.Struct, frozen=True):
    """A session of which turns are kept: how many, and when the last was used."""

    session: str
    turns: int
    last_used: float


class LedgerStore(Protocol):
    """Keeps entries, each for its tenant alone, and forgets those not used for longest.

    Nothing is promised about parents: a child may outlive the entry it grew from. An id from a
    look-up may be gone by the time it is read.
    """

    @property
    def is_degraded(self) -> bool:
        """Whether what it did not find of late may be there all the same."""

    @property
    def faults(self) -> StoreFaults:
        """What it could not do. Who asks it adds only what is lost for that."""

    async def get(self, tenant: str, id: str) -> LedgerEntry | None:
        """The entry, or None if this tenant has none of that id."""

    async def find_by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Ids of the entries that made this call, newest first; normally one."""

    async def find_by_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """Ids of the entries whose `chain` is this, newest first, at most `NEWEST`."""

    async def find_by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Ids of the entries of this session, oldest first, at most `MOST_TURNS`.

        This and `sessions` are asked by people: a store without an answer raises `StoreError`.
        """

    async def list_sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """The sessions of a tenant, newest first, at most `MOST_SESSIONS`."""

    async def put(self, entry: LedgerEntry) -> None:
        """Keep it. To put the same entry again changes nothing."""

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        """These were used again: their age begins anew."""

    async def version(self) -> int | None:
        """Another number whenever another process has written. None where that cannot be told."""

    async def stats(self) -> LedgerStats:
        """How much is held. Not for the hot path."""

    async def close(self) -> None:
        """Finish what was begun and let go. A closed store is not used again."""


def make_call_key(id: str) -> str:
    """A call id as it is looked up: its ASCII letters and digits, case kept.

    A client rewrites call_1 to call1, so nothing else may count. Empty: not to be found.
    """
    return _NON_ALPHANUMERIC.sub("", id)


def make_call_keys(entry: LedgerEntry) -> tuple[str, ...]:
    """The keys under which an entry is found by its calls, and by the answer that it became."""
    ids = (*entry.call_ids, entry.answer)
    return tuple(dict.fromkeys(key for id in ids if (key := make_call_key(id))))


_PLAIN, _ZSTD = b"\0", b"\1"
_MIN_COMPRESS_BYTES = 300  # below that a frame's header eats what it saves
_MAX_BODY_BYTES = 1 << 28  # no turn comes near; a damaged header must not ask for all memory

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LedgerEntry)


def encode_entry(entry: LedgerEntry) -> bytes:
    """The entry as one body."""
    packed = _encoder.encode(entry)
    if len(packed) < _MIN_COMPRESS_BYTES:
        return _PLAIN + packed
    return _ZSTD + zstandard.ZstdCompressor().compress(packed)


def decode_entry(body: bytes) -> LedgerEntry | None:
    """The entry of a body, or None if it is damaged or of a version that we do not know."""
    try:
        packed = decompress(body[1:], _MAX_BODY_BYTES) if body[:1] == _ZSTD else body[1:]
        return _decoder.decode(packed)
    except (ValueError, msgspec.MsgspecError):
        return None


def decompress(frame: bytes, limit: int) -> bytes:
    """Decompress at most `limit` bytes. ValueError for anything else.

    The library's own limit is not used by it when the frame states its size: hence the check.
    """
    try:
        if zstandard.frame_content_size(frame) > limit:
            raise ValueError("too large")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=limit)
    except zstandard.ZstdError as error:
        raise ValueError("not a frame") from error
