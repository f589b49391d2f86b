"""The interface of ledger stores, and the keys and the encoding that all stores use."""

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import msgspec
import zstandard

from dovetail.ledger.entry import FINISH_INTERRUPTED, LedgerEntry
from dovetail.storage.faults import StoreFaults

DAY_SECONDS = 86_400.0
MAX_AGE_SECONDS = 7 * DAY_SECONDS  # since the last use of an entry
MAX_LOOKUP_IDS = 8  # maximum result of a lookup by call or chain
MAX_LOOKUP_MARKS = 64  # maximum number of marks in the result of a lookup by chain
MAX_MARKS = 1_000_000  # stored marks; the oldest are dropped
MAX_SESSION_TURNS = 65_536  # maximum result of a lookup by session
MAX_LISTED_SESSIONS = 10_000  # per tenant

Clock = Callable[[], float]

_NON_ALPHANUMERIC = bytes(code for code in range(256) if not chr(code).isalnum() or code > 127)


class LedgerStats(msgspec.Struct, frozen=True):
    """The number and size of a store's entries."""

    entries: int
    bytes: int


class SessionStats(msgspec.Struct, frozen=True):
    """A stored session: the number of its turns, and the time of its last use."""

    session: str
    turns: int
    last_used: float


class OpenTurn(msgspec.Struct, frozen=True):
    """A turn that is being generated. Until it is stored, its visible text is unknown.

    `session`: the session that the client named, as stored in entries; empty if it named none.
    """

    tenant: str
    id: str
    chain_before: bytes
    session: str = ""


class TurnMark(NamedTuple):
    """A turn that may look like the one that is looked up, but cannot be compared with it.

    It is open, was never stored because its process crashed, or was evicted.
    """

    id: str
    session: str


class ChainLookup(NamedTuple):
    """The result of a lookup by chain.

    `ids`: the entries with the chain, newest first, at most `MAX_LOOKUP_IDS`.
    `marks`: other turns that may have the same chain, at most `MAX_LOOKUP_MARKS`.
    `exhaustive`: whether no other turn with this chain can exist.
    """

    ids: tuple[str, ...]
    marks: tuple[TurnMark, ...] = ()
    exhaustive: bool = True


class LedgerStore(Protocol):
    """The interface of ledger stores: store entries per tenant, evict the least recently used.

    A child may outlive its parent. An entry may be evicted between the lookup of its id and `get`.
    """

    @property
    def is_degraded(self) -> bool:
        """Whether recent lookups may have missed existing entries."""

    @property
    def faults(self) -> StoreFaults:
        """The failures of the store. Callers record only lost writes."""

    async def start(self) -> None:
        """Connect before the first request, without failing if the store is unavailable."""

    async def get(self, tenant: str, id: str) -> LedgerEntry | None:
        """Return the entry, or None if the tenant has no entry with this id."""

    async def find_by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Return the ids of the entries that made this call, newest first; normally one."""

    async def find_by_chain(self, tenant: str, chain: bytes, chain_before: bytes) -> ChainLookup:
        """Return the turns that have, or may have, this chain. Raises StoreError if it fails."""

    async def find_by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Return the ids of the entries of this session, oldest first, at most `MAX_SESSION_TURNS`.

        This and `list_sessions` are for operators: they raise `StoreError` if the store fails.
        """

    async def list_sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """Return the sessions of a tenant, newest first, at most `MAX_LISTED_SESSIONS`."""

    async def open_turn(self, turn: OpenTurn) -> None:
        """Announce a turn before its first event is emitted. Raises StoreError if it fails."""

    async def close_turn(self, turn: OpenTurn) -> None:
        """Withdraw an announced turn of which the client has received nothing."""

    async def put(self, entry: LedgerEntry) -> None:
        """Store an entry. Storing the same entry again changes nothing.

        The turn is no longer open, unless it was interrupted: its client may have received less
        than was recorded.
        """

    @property
    def gap_at(self) -> float:
        """The time at which a turn was last served without being announced; 0 if never."""

    async def record_gap(self, turn: OpenTurn, reason: str) -> None:
        """Record that a turn is served although it could not be announced.

        Returns when lookups of all processes can notice it.
        """

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        """Mark entries as used: this restarts their age."""

    async def version(self) -> int | None:
        """Return a number that changes when another process writes, or None if it is unknown."""

    async def stats(self) -> LedgerStats:
        """Return the number and size of the stored entries. Too slow for the hot path."""

    async def close(self) -> None:
        """Finish pending operations and close the store, which cannot be used afterwards."""


def make_call_key(id: str) -> str:
    """Reduce a call id to its lookup key: its ASCII letters and digits, case preserved.

    Clients rewrite call_1 to call1, so other characters are ignored. An empty key is never found.
    A request may have megabytes of ids, which are reduced on the event loop.
    """
    return id.encode("ascii", "ignore").translate(None, _NON_ALPHANUMERIC).decode()


def make_call_keys(entry: LedgerEntry) -> tuple[str, ...]:
    """Return the lookup keys of an entry: the ids of its calls and of its response."""
    ids = (*entry.call_ids, entry.response_number)
    return tuple(dict.fromkeys(key for id in ids if (key := make_call_key(id))))


def hides_reasoning(entry: LedgerEntry) -> bool:
    """Return whether the turn contains reasoning, which clients may drop."""
    return any(span.kind == "reasoning" and span.shown.strip() for span in entry.spans)


def closes_turn(entry: LedgerEntry) -> bool:
    """Return whether storing the entry closes its turn: it is known what the client received."""
    return entry.finish != FINISH_INTERRUPTED


_PLAIN, _ZSTD = b"\0", b"\1"
_MIN_COMPRESS_BYTES = 300  # below this size the frame header outweighs the savings
_MAX_BODY_BYTES = 1 << 28  # larger than any turn; a damaged header must not cause a huge allocation

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LedgerEntry)
_thread_state = threading.local()


def encode_entry(entry: LedgerEntry) -> bytes:
    """Encode an entry, compressed if it is large."""
    packed = _encoder.encode(entry)
    if len(packed) < _MIN_COMPRESS_BYTES:
        return _PLAIN + packed
    return _ZSTD + _get_compressor().compress(packed)


def _get_compressor() -> zstandard.ZstdCompressor:
    """Return the compressor of this thread. Creating one takes longer than compressing a turn."""
    compressor = getattr(_thread_state, "compressor", None)
    if compressor is None:
        compressor = _thread_state.compressor = zstandard.ZstdCompressor()
    return compressor


def decode_entry(body: bytes) -> LedgerEntry | None:
    """Decode an entry. Returns None if it is damaged or has an unknown version."""
    try:
        packed = decompress(body[1:], _MAX_BODY_BYTES) if body[:1] == _ZSTD else body[1:]
        return _decoder.decode(packed)
    except (ValueError, msgspec.MsgspecError):
        return None


def decompress(frame: bytes, limit: int) -> bytes:
    """Decompress a zstd frame. Raises ValueError if it is invalid or exceeds `limit` bytes.

    The library ignores its own limit if the frame states its size, so the size is checked first.
    """
    try:
        if zstandard.frame_content_size(frame) > limit:
            raise ValueError(f"the decompressed size exceeds {limit} bytes")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=limit)
    except zstandard.ZstdError as error:
        raise ValueError("not a zstd frame") from error
