"""The data of the web UI: of this process, merged with that of the other worker processes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Literal

import msgspec

from dovetail.engines.engine import FactReporter
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.telemetry.metrics import VERSION, Metrics
from dovetail.telemetry.record import RequestContents, RequestRecord, StartedRequest
from dovetail.ui.history import RequestHistory, SessionKey, SessionTotals, StoredTurn
from dovetail.ui.live import LiveSnapshot, LiveStatistics, build_live_view
from dovetail.ui.session_view import Json, build_session_view, build_totals_view

PAGE_SIZE = 50  # sessions per page
MAX_WORDS = 8  # of a search
SNAPSHOT_SECONDS = 1.0  # between two updates of the overview


class UiQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A request to another worker process. `limit`: the maximum number of sessions."""

    kind: Literal["overview", "sessions", "session"]
    tenant: str = ""
    session: str = ""
    words: tuple[str, ...] = ()
    limit: int = 0


class ReplicaStatus(msgspec.Struct):
    """A replica of a model: its load, and the facts that its engine reports."""

    model: str
    engine: str
    replica: int
    available: bool
    active: int | None = None
    restarts: int = 0
    running: float | None = None
    waiting: float | None = None
    cache_usage: float | None = None


class ProcessOverview(msgspec.Struct):
    """What one process contributes to the overview."""

    live: LiveSnapshot
    replicas: list[ReplicaStatus]


class SessionPage(msgspec.Struct):
    """The last active sessions of one process, and how many there are."""

    sessions: list[SessionTotals]
    count: int


class SessionPart(msgspec.Struct):
    """The part of a session that one process served."""

    totals: SessionTotals
    turns: list[StoredTurn]


Gather = Callable[[UiQuery], Awaitable[Iterable[bytes]]]


async def _gather_nothing(query: UiQuery) -> Iterable[bytes]:
    return ()


class UiData:
    """A recorder with everything that the page shows.

    gather: Sends a request to all other worker processes and returns their responses.
    workers: The number of worker processes.
    payloads: Whether texts of prompts and responses are stored.
    """

    def __init__(self, service: ModelRegistry, metrics: Metrics, *, payloads: bool = False) -> None:
        self.history = RequestHistory(payloads=payloads)
        self.live = LiveStatistics(metrics)
        self.gather: Gather = _gather_nothing
        self.workers = 1
        self.payloads = payloads
        self._service = service
        self._overview: asyncio.Task[bytes] | None = None
        self._overview_at = float("-inf")

    def start_request(self, started: StartedRequest) -> None:
        self.history.start_request(started)

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None:
        self.live.record_request(record, contents)
        self.history.record_request(record, contents)

    def close(self) -> None:
        """Nothing is pending."""

    def query(self, query: UiQuery) -> bytes:
        """Return what another worker process requests."""
        match query.kind:
            case "overview":
                return _encode(ProcessOverview(self.live.snapshot(), self._replicas()))
            case "sessions":
                return _encode(self._own_page(query))
            case "session":
                return _encode(self._own_parts(query))

    async def overview(self) -> bytes:
        """Return the overview as JSON. All viewers share one per second."""
        now = time.monotonic()
        if self._overview is None or now - self._overview_at > SNAPSHOT_SECONDS / 2:
            self._overview_at = now
            self._overview = asyncio.create_task(self._build_overview())
        return await asyncio.shield(self._overview)

    async def sessions(self, text: str, offset: int) -> Json:
        """Return one page of the sessions whose names contain all words of `text`."""
        words = tuple(text.lower().split()[:MAX_WORDS])
        query = UiQuery(kind="sessions", words=words, limit=offset + PAGE_SIZE)
        page = self._own_page(query)
        found, count = list(page.sessions), page.count
        for other in _decode_all(await self.gather(query), SessionPage):
            found, count = found + other.sessions, count + other.count
        merged = merge_sessions(found) if self.workers > 1 else found
        shown = merged[offset : offset + PAGE_SIZE]
        return {
            "sessions": [build_totals_view(one) for one in shown],
            "count": count - (len(found) - len(merged)),
            "offset": offset,
            "page_size": PAGE_SIZE,
        }

    async def session(self, tenant: str, session: str) -> bytes | None:
        """Return a session with its turns as JSON; None if no process has it."""
        found = await self._find_session(tenant, session)
        # A long session takes milliseconds, in which no stream must wait.
        return None if found is None else await asyncio.to_thread(_encode_session, *found)

    async def payload(self, tenant: str, session: str, turn: str) -> Json | None:
        """Return the bodies of a turn; None if they are not stored."""
        found = await self._find_session(tenant, session)
        turns = [] if found is None else found[1]
        stored = next((one for one in turns if one.record.id == turn), None)
        if stored is None or (stored.request is None and stored.response is None):
            return None
        return {"request": stored.request, "response": stored.response}

    async def _find_session(
        self, tenant: str, session: str
    ) -> tuple[SessionTotals, list[StoredTurn]] | None:
        query = UiQuery(kind="session", tenant=tenant, session=session)
        parts = self._own_parts(query)
        for others in _decode_all(await self.gather(query), list[SessionPart]):
            parts += others
        if not parts:
            return None
        (totals, *_) = merge_sessions([one.totals for one in parts])
        return totals, [turn for part in parts for turn in part.turns]

    def _own_page(self, query: UiQuery) -> SessionPage:
        sessions = self.history.newest(query.words, query.limit)
        return SessionPage(sessions, self.history.count(query.words))

    def _own_parts(self, query: UiQuery) -> list[SessionPart]:
        found = self.history.find(query.tenant, query.session)
        return [SessionPart(totals, turns) for totals, turns in found]

    async def _build_overview(self) -> bytes:
        live, replicas = self.live.snapshot(), self._replicas()
        frames = await self.gather(UiQuery(kind="overview"))
        for other in _decode_all(frames, ProcessOverview):
            live.add(other.live)
            _add_replicas(replicas, other.replicas)
        now = time.time()
        view: dict[str, Any] = {
            "now": now,
            "version": VERSION,
            "workers": self.workers,
            "payloads": self.payloads,
            "replicas": replicas,
            **build_live_view(live, now),
        }
        return msgspec.json.encode(view)

    def _replicas(self) -> list[ReplicaStatus]:
        """Return the state of all replicas. Adapters share those of their model."""
        found: list[ReplicaStatus] = []
        for entry in self._service.entries:
            if not isinstance(entry, TokenModel):
                found.append(ReplicaStatus(entry.name, entry.engine.name, 0, available=True))
            elif entry.adapter is None:
                found += (
                    ReplicaStatus(
                        entry.name,
                        one.engine.name,
                        one.index,
                        one.is_available,
                        one.active_requests,
                        one.restarts,
                        **_reported_facts(one.engine),
                    )
                    for one in entry.engine.replicas
                )
        return found


def merge_sessions(found: Iterable[SessionTotals]) -> list[SessionTotals]:
    """Merge the parts of sessions that several processes served, the last active first.

    A subagent's session belongs to its parent, which another process may have served.
    """
    merged: dict[SessionKey, SessionTotals] = {}
    for one in found:
        own = merged.setdefault(one.key, msgspec.structs.replace(one))
        if own.members is one.members:  # a copy: the original is still in use
            own.members, own.agents = set(one.members), set(one.agents)
        else:
            own.parent = own.parent and one.parent
            own.add_totals(one)
    roots = {(one.tenant, member): one for one in merged.values() for member in one.members}
    for key, one in list(merged.items()):
        root = roots.get((one.tenant, one.parent or ""))
        if one.parent and root is not None and root is not one and root.key in merged:
            root.add_totals(merged.pop(key))
    return sorted(merged.values(), key=lambda one: -one.last)


def _add_replicas(replicas: list[ReplicaStatus], others: list[ReplicaStatus]) -> None:
    """Add the requests of another process to the replicas, which all processes share."""
    own = {(one.model, one.replica): one for one in replicas}
    for other in others:
        one = own.get((other.model, other.replica))
        if one is None:
            replicas.append(other)
        else:
            one.active = (one.active or 0) + (other.active or 0)
            one.available &= other.available
            one.restarts = max(one.restarts, other.restarts)


def _reported_facts(engine: object) -> dict[str, float]:
    facts = engine.reported_facts if isinstance(engine, FactReporter) else {}
    names = ("running", "waiting", "cache_usage")
    return {name: float(facts[name]) for name in names if facts.get(name) is not None}


def _encode(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def _decode_all(frames: Iterable[bytes], kind: Any) -> Iterator[Any]:
    """Decode the responses of other processes. Those that run another version are left out."""
    for frame in frames:
        with suppress(msgspec.MsgspecError):
            yield msgspec.msgpack.decode(frame, type=kind)


def _encode_session(totals: SessionTotals, turns: list[StoredTurn]) -> bytes:
    return msgspec.json.encode(build_session_view(totals, turns))
