"""The recent sessions of one process, in bounded memory.

Finished requests are stored encoded, which takes about 1 KB each. A session and its subagents are
one tree: if memory is needed, the tree that was idle for longest is discarded.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from dovetail.storage.lru import LruCache
from dovetail.telemetry.record import RequestContents, RequestRecord, StartedRequest
from dovetail.ui.explanation import count_changed_tokens

MAX_SESSIONS = 500
MAX_TURNS_PER_SESSION = 1000
MAX_BYTES = 64 << 20
MAX_MEMBERS = 64  # sessions and agents of one tree that are distinguished

SessionKey = tuple[str, str]  # tenant and session


class StoredTurn(msgspec.Struct, frozen=True, array_like=True):
    """A finished request, with its texts if the operator enabled payloads.

    `divergence`: the text before the divergence, the old and the new text after it.
    `request`, `response`: the bodies.
    """

    record: RequestRecord
    divergence: tuple[str, str, str] | None = None
    request: str | None = None
    response: str | None = None


class SessionTotals(msgspec.Struct, kw_only=True):
    """A session with its subagents.

    `id`: the root session, empty for requests without a session.
    `parent`: the parent that the client named, if this process does not know it.
    `members`: the sessions of the tree.
    `agents`: the agents and subagents.
    `running`: requests in progress.
    `reprefilled_tokens`, `changed_tokens`: tokens that were prefilled again because the engine no
    longer had them, and because the prefix diverged.
    `stored`: the finished requests that are still in memory.
    `last`: the time of the last activity.
    """

    tenant: str
    id: str
    parent: str | None = None
    members: set[str] = msgspec.field(default_factory=set)
    agents: set[str] = msgspec.field(default_factory=set)
    harness: str = ""
    model: str = ""
    running: int = 0
    requests: int = 0
    stored: int = 0
    failed: int = 0
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    reprefilled_tokens: int = 0
    changed_tokens: int = 0
    diverged: int = 0
    began: float = 0.0
    last: float = 0.0

    @property
    def key(self) -> SessionKey:
        return self.tenant, self.id

    def add_record(self, record: RequestRecord) -> None:
        """Add a finished request."""
        self.requests += 1
        self.failed += record.status >= 400
        self.calls += len(record.calls)
        self.reprefilled_tokens += record.reprefilled or 0
        self.changed_tokens += count_changed_tokens(record)
        self.diverged += is_diverged(record)
        self.model = record.model or self.model
        self.began = min(self.began or record.began, record.began)
        self.last = max(self.last, record.began + record.duration)
        if record.usage is not None:
            self.input_tokens += record.usage.input_tokens
            self.cached_tokens += record.usage.cached_tokens
            self.output_tokens += record.usage.output_tokens
            self.reasoning_tokens += record.usage.reasoning_tokens

    def add_agent(self, session: str | None, agent: str | None, harness: str) -> None:
        self.harness = self.harness or harness
        if len(self.agents) < MAX_MEMBERS:
            self.agents.add(f"{session or ''} {agent or ''}")

    def add_totals(self, other: "SessionTotals") -> None:
        """Add the part of the session that another worker process served."""
        self.members |= other.members
        self.agents |= other.agents
        self.harness = self.harness or other.harness
        self.model = self.model or other.model
        self.began = min(filter(None, (self.began, other.began)), default=0.0)
        self.last = max(self.last, other.last)
        for name in _SUMMED_FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def matches(self, words: Iterable[str]) -> bool:
        """Return whether each word, in lower case, is in a name of the session or its state."""
        state = "running" if self.running else "idle"
        names = (*self.members, self.harness, self.model, self.tenant, state)
        text = "\n".join(names).lower()
        return all(word in text for word in words)


_SUMMED_FIELDS = (
    *("running", "requests", "stored", "failed", "calls", "input_tokens", "cached_tokens"),
    *("output_tokens", "reasoning_tokens", "reprefilled_tokens", "changed_tokens", "diverged"),
)


def is_diverged(record: RequestRecord) -> bool:
    """Return whether the prompt does not extend the previous one of its session."""
    reason = None if record.prefix is None else record.prefix.reason
    return reason is not None and reason != "first"


class _Tree:
    """A root session: its totals and its encoded turns, oldest first."""

    __slots__ = ("size", "totals", "turns")

    def __init__(self, totals: SessionTotals) -> None:
        self.totals = totals
        self.turns: deque[bytes] = deque()
        self.size = 0

    def append(self, turn: bytes) -> None:
        self.turns.append(turn)
        self.size += len(turn)
        self.totals.stored += 1

    def drop_oldest(self) -> int:
        """Drop the oldest turn and return its size."""
        size = len(self.turns.popleft())
        self.size -= size
        self.totals.stored -= 1
        return size


class RequestHistory:
    """A recorder that stores the last turns of the last sessions."""

    def __init__(
        self,
        *,
        payloads: bool = False,
        max_sessions: int = MAX_SESSIONS,
        max_turns_per_session: int = MAX_TURNS_PER_SESSION,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._payloads = payloads
        self._max_sessions = max_sessions
        self._max_turns = max_turns_per_session
        self._max_bytes = max_bytes
        self._trees: LruCache[SessionKey, _Tree] = LruCache()
        self._roots: dict[SessionKey, SessionKey] = {}  # member -> root
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(StoredTurn)
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._trees)

    def start_request(self, started: StartedRequest) -> None:
        """Note that a request of a session runs."""
        tree = self._find_tree(started.tenant, started.session, started.parent)
        tree.totals.running += 1
        tree.totals.last = max(tree.totals.last, started.at)
        tree.totals.model = started.model
        tree.totals.add_agent(started.session, started.agent, started.harness)

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None:
        if record.decoded is None:  # rejected before its session was known
            return
        tree = self._find_tree(record.tenant, record.session, record.parent)
        tree.totals.running = max(0, tree.totals.running - 1)
        tree.totals.add_agent(record.session, record.agent, record.harness)
        tree.totals.add_record(record)
        before = tree.size
        tree.append(self._encoder.encode(self._stored_turn(record, contents)))
        while len(tree.turns) > self._max_turns:
            tree.drop_oldest()
        self.held_bytes += tree.size - before
        self._evict()

    def close(self) -> None:
        """Nothing is pending."""

    def newest(self, words: tuple[str, ...], limit: int) -> list[SessionTotals]:
        """Return the sessions that match all words, the last active first."""
        all_totals = (tree.totals for _, tree in self._trees.newest_first())
        return list(islice((one for one in all_totals if one.matches(words)), limit))

    def count(self, words: tuple[str, ...]) -> int:
        """Return the number of sessions that match all words."""
        if not words:
            return len(self._trees)
        return sum(tree.totals.matches(words) for tree in self._trees.values())

    def find(self, tenant: str, session: str) -> Iterator[tuple[SessionTotals, list[StoredTurn]]]:
        """Yield the tree with this session, and trees that name it as their parent."""
        root = self._roots.get((tenant, session))
        for key, tree in self._trees.items():
            totals = tree.totals
            is_child = bool(session) and (totals.tenant, totals.parent) == (tenant, session)
            if key == root or is_child:
                yield totals, [self._decoder.decode(turn) for turn in tree.turns]

    def _stored_turn(self, record: RequestRecord, contents: RequestContents) -> StoredTurn:
        if not self._payloads:
            return StoredTurn(record)
        return StoredTurn(
            record,
            contents.divergence,
            _decode_text(contents.body),
            _decode_text(contents.response_body),
        )

    def _find_tree(self, tenant: str, session: str | None, parent: str | None) -> _Tree:
        """Return the tree of a session, and mark it as the last active one."""
        key = (tenant, session or "")
        known_parent = self._roots.get((tenant, parent)) if parent and session else None
        root = self._roots.get(key) or known_parent or key
        tree = self._trees.get(root)
        if tree is None:
            unknown_parent = parent if session and parent != session else None
            tree = _Tree(SessionTotals(tenant=tenant, id=key[1], parent=unknown_parent))
            root = key
            self._trees.put(root, tree)
        if len(tree.totals.members) < MAX_MEMBERS:
            tree.totals.members.add(key[1])
            self._roots[key] = root
        self._evict()
        return tree

    def _evict(self) -> None:
        while len(self._trees) > self._max_sessions or (
            self.held_bytes > self._max_bytes and len(self._trees) > 1
        ):
            key, tree = self._trees.pop_oldest()
            self.held_bytes -= tree.size
            for member in (key, *((key[0], one) for one in tree.totals.members)):
                self._roots.pop(member, None)
        for tree in self._trees.values() if self.held_bytes > self._max_bytes else ():
            while self.held_bytes > self._max_bytes and tree.turns:
                self.held_bytes -= tree.drop_oldest()


def _decode_text(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "replace")
