"""Group requests into sessions, and find the one that each request continues."""

from collections import deque
from dataclasses import dataclass, field

import msgspec

from dovetail.ledger.turn_digest import compute_digest, digest_history, digest_turn
from dovetail.storage.lru import LruCache
from dovetail_model import Request, Turn

_MAX_EXCHANGES_PER_SESSION = 16  # that the next one may continue
_MAX_CHAINS = 65536  # conversations without a session id
_MAX_SESSIONS = 4096
_MAX_BODY_BYTES = 256 << 20  # of all stored requests
_MAX_FULL_LABEL_CHARS = 24  # longer names are shortened
_MIN_LABEL_CHARS = 8


@dataclass(frozen=True)
class PastExchange:
    """A finished exchange: its request with ordered turns, and its response.

    `call_completed_at` is a wall clock time; `is_certain`: the tokens of the response are known.
    """

    request: Request
    digests: tuple[bytes, ...]
    response: Turn | None
    call_completed_at: float | None
    is_certain: bool
    body_bytes: int


@dataclass
class ObservedSession:
    """A conversation, with its side requests and subagents."""

    name: str
    label: str
    request_count: int = 0
    exchanges: deque[PastExchange] = field(default_factory=deque)

    def find_predecessor(self, request: Request) -> PastExchange | None:
        """Return the exchange that a request continues: the one with most turns in common."""
        digests = turn_digests(request)
        best, max_shared = None, 0
        for past in reversed(self.exchanges):
            shared = _shared_length(past.digests, digests)
            if shared > max_shared:
                best, max_shared = past, shared
        return best


class SessionTracker:
    """Finds the session of a request: by its session id, or by the turns that it repeats."""

    def __init__(self, *, max_body_bytes: int = _MAX_BODY_BYTES) -> None:
        self._max_body_bytes = max_body_bytes
        self._sessions: LruCache[str, ObservedSession] = LruCache(
            _MAX_SESSIONS, on_evict=self._release
        )
        self._labels: dict[str, str] = {}  # -> the name of the session that has it
        # The turns of a prompt -> its session name. A lookup does not renew the entry.
        self._chains: LruCache[bytes, str] = LruCache(_MAX_CHAINS)
        self._unnamed_count = 0
        self._total_bytes = 0

    def get(self, request: Request) -> ObservedSession:
        name = request.identity.session or self._match_by_turns(request)
        session = self._sessions.get(name)
        if session is None:
            session = ObservedSession(name, self._create_label(name))
            self._sessions.put(name, session)
        session.request_count += 1
        return session

    def add_exchange(self, session: ObservedSession, past: PastExchange) -> None:
        """Add a finished exchange. The oldest ones are evicted if there are too many."""
        session.exchanges.append(past)
        self._total_bytes += past.body_bytes
        if len(session.exchanges) > _MAX_EXCHANGES_PER_SESSION:
            self._total_bytes -= session.exchanges.popleft().body_bytes
        while self._total_bytes > self._max_body_bytes and len(self._sessions) > 1:
            self._release(*self._sessions.pop_oldest())
        while self._total_bytes > self._max_body_bytes and len(session.exchanges) > 1:
            self._total_bytes -= session.exchanges.popleft().body_bytes

    def _release(self, name: str, session: ObservedSession) -> None:
        """Release the data of an evicted session."""
        self._total_bytes -= sum(past.body_bytes for past in session.exchanges)
        self._labels.pop(session.label, None)

    def _create_label(self, name: str) -> str:
        """Return a short label: the shortest unique prefix of the id.

        It is extended until unique, since the ids of some harnesses begin with a timestamp.
        """
        printable = "".join(letter if letter.isprintable() else "?" for letter in name)
        lengths = (
            (len(printable),)
            if len(printable) <= _MAX_FULL_LABEL_CHARS
            else range(_MIN_LABEL_CHARS, len(printable) + 1)
        )
        labels = (printable[:length] for length in lengths)
        label = next((one for one in labels if self._labels.get(one, name) == name), printable)
        self._labels[label] = name
        return label

    def _match_by_turns(self, request: Request) -> str:
        """Return the session of the longest known prompt that this one continues, or a new one."""
        chains, chain = [], b""
        for one in turn_digests(request):
            chain = compute_digest(chain, one)
            chains.append(chain)
        known = map(self._chains.peek, reversed(chains[:-1]))
        name = next(filter(None, known), None)
        if name is None:
            self._unnamed_count += 1
            name = f"unnamed {self._unnamed_count}"
        if chains:
            self._chains.put(chains[-1], name)
        return name


def build_past_exchange(
    request: Request,
    response: Turn | None,
    call_completed_at: float | None,
    *,
    is_certain: bool,
    body_bytes: int,
) -> PastExchange:
    """Build the stored form of an exchange."""
    turns = turn_digests(request)
    digests = turns if response is None else (*turns, digest_turn(response).digest)
    return PastExchange(request, digests, response, call_completed_at, is_certain, body_bytes)


def with_session(request: Request, session: str) -> Request:
    """Return the request with this session id."""
    identity = msgspec.structs.replace(request.identity, session=session)
    return msgspec.structs.replace(request, identity=identity)


def turn_digests(request: Request) -> tuple[bytes, ...]:
    return digest_history(request.turns)


def _shared_length(left: tuple[bytes, ...], right: tuple[bytes, ...]) -> int:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length
