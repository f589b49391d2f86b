"""The interface of ledger stores, and what its implementations share: keys and encoding."""

import re
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
import zstandard

from dovetail.ledger.entry import LedgerEntry
from dovetail.storage.faults import StoreFaults

DAY_SECONDS = 86_400.0
MAX_AGE_SECONDS = 7 * DAY_SECONDS  # since an entry was last used
MAX_LOOKUP_IDS = 8  # returned by a look-up by call or chain
MAX_SESSION_TURNS = 65_536  # returned by a look-up by session
MAX_LISTED_SESSIONS = 10_000  # of a tenant

Clock = Callable[[], float]

_NON_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]+")


class LedgerStats(msgspec.Struct, frozen=True):
    """The number and size of a store's entries."""

    entries: int
    bytes: int


class SessionStats(msgspec.Struct, frozen=True):
    """A stored session: the number of its turns, and when the last was used."""

    session: str
    turns: int
    last_used: float


class LedgerStore(Protocol):
    """Stores entries, each for its tenant alone, and evicts the least recently used.

    A child may outlive its parent. The entry of an id from a look-up may be gone when it is read.
    """

    @property
    def is_degraded(self) -> bool:
        """Whether entries that were not found recently may exist nevertheless."""

    @property
    def faults(self) -> StoreFaults:
        """Its failures. Callers add only what is lost through them."""

    async def get(self, tenant: str, id: str) -> LedgerEntry | None:
        """The entry, or None if this tenant has none of that id."""

    async def find_by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Ids of the entries that made this call, newest first; normally one."""

    async def find_by_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """Ids of the entries whose `chain` is this, newest first, at most `MAX_LOOKUP_IDS`."""

    async def find_by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Ids of the entries of this session, oldest first, at most `MAX_SESSION_TURNS`.

        This and `list_sessions` serve operators: a store that fails raises `StoreError`.
        """

    async def list_sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """The sessions of a tenant, newest first, at most `MAX_LISTED_SESSIONS`."""

    async def put(self, entry: LedgerEntry) -> None:
        """Store an entry. Storing the same entry again changes nothing."""

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        """Mark entries as used again: their age restarts."""

    async def version(self) -> int | None:
        """A number that changes when another process writes. None where that is not known."""

    async def stats(self) -> LedgerStats:
        """The number and size of the stored entries. Not for the hot path."""

    async def close(self) -> None:
        """Finish pending operations and release resources. A closed store is not used again."""


def make_call_key(id: str) -> str:
    """Reduce a call id to what is looked up: its ASCII letters and digits, case preserved.

    Clients rewrite call_1 to call1, so nothing else may count. Empty: cannot be found.
    """
    return _NON_ALPHANUMERIC.sub("", id)


def make_call_keys(entry: LedgerEntry) -> tuple[str, ...]:
    """The keys under which an entry is found: the ids of its calls and of its response."""
    ids = (*entry.call_ids, entry.response_number)
    return tuple(dict.fromkeys(key for id in ids if (key := make_call_key(id))))


_PLAIN, _ZSTD = b"\0", b"\1"
_MIN_COMPRESS_BYTES = 300  # below that a frame's header outweighs the savings
_MAX_BODY_BYTES = 1 << 28  # far above any turn; a damaged header must not allocate all memory

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LedgerEntry)


def encode_entry(entry: LedgerEntry) -> bytes:
    """Encode an entry, compressed if it is large."""
    packed = _encoder.encode(entry)
    if len(packed) < _MIN_COMPRESS_BYTES:
        return _PLAIN + packed
    return _ZSTD + zstandard.ZstdCompressor().compress(packed)


def decode_entry(body: bytes) -> LedgerEntry | None:
    """Decode an entry, or return None if it is damaged or of an unknown version."""
    try:
        packed = decompress(body[1:], _MAX_BODY_BYTES) if body[:1] == _ZSTD else body[1:]
        return _decoder.decode(packed)
    except (ValueError, msgspec.MsgspecError):
        return None


def decompress(frame: bytes, limit: int) -> bytes:
    """Decompress at most `limit` bytes. ValueError for anything else.

    The library ignores its own limit when the frame states its size: hence the check.
    """
    try:
        if zstandard.frame_content_size(frame) > limit:
            raise ValueError("too large")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=limit)
    except zstandard.ZstdError as error:
        raise ValueError("not a frame") from error
