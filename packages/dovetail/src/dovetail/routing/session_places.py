"""The places of sessions in the KV cache of one replica.

A place is the space that a session's prefix occupies. Heads that several sessions share are counted
once, up to the longest beginning that one of them shares. The engine evicts the least recently used
blocks, so the sessions between turns are kept in that order.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from math import inf

from dovetail.routing.session_turns import SessionState, SessionStatus, TurnArrival
from dovetail.routing.tool_times import ToolTimeKey

#: Sessions that were not expected back for so long are deleted, and old ones of more than so many.
SESSION_EXPIRY_SECONDS, EXPIRY_INTERVAL_SECONDS, MAX_KNOWN_SESSIONS = 3_600.0, 60.0, 10_000


class PlacedSession:
    """A session that the scheduler knows.

    `first_seen`: when its first turn arrived.
    `head_tokens`: how much of the head it shares; the others may share more or less of it.
    `tokens`: the size of its place without the head; 0 without a place.
    `placement`: the order in which it got its place; None without one.
    `running`, `waiting`: the number of its turns in these states.
    `is_ended`: it was released while a turn was running.
    `idle_since`: the end of its last turn; None if it has a turn.
    `hold_until`: the time until which others must not take the place.
    `tool_keys`, `predicted_seconds`: the tools that it runs, and their predicted time.
    `callers`: its relatives that were between turns when it began, and may wait for it.
    """

    __slots__ = (
        "callers",
        "first_seen",
        "head",
        "head_tokens",
        "hold_until",
        "idle_since",
        "is_ended",
        "key",
        "placement",
        "predicted_seconds",
        "running",
        "tenant",
        "tokens",
        "tool_keys",
        "waiting",
    )

    def __init__(self, key: str, tenant: str, now: float) -> None:
        self.key = key
        self.tenant = tenant
        self.first_seen = now
        self.head: str | None = None
        self.head_tokens = 0
        self.tokens = 0
        self.placement: int | None = None
        self.running = 0
        self.waiting = 0
        self.is_ended = False
        self.idle_since: float | None = None
        self.hold_until = 0.0
        self.tool_keys: tuple[ToolTimeKey, ...] = ()
        self.predicted_seconds: float | None = None
        self.callers: tuple[str, ...] = ()

    @property
    def has_turns(self) -> bool:
        return self.running > 0 or self.waiting > 0

    def state(self, arrived_at: float | None, now: float) -> SessionState:
        """Return the state to report. `arrived_at`: when the turn that waits arrived."""
        is_held = self.placement is not None and now < self.hold_until < inf
        status: SessionStatus = "held" if is_held else "idle"
        if self.has_turns:
            status = "running" if self.running else "paused"
        return SessionState(
            self.key,
            self.tenant,
            status,
            self.tokens,
            None if arrived_at is None else now - arrived_at,
            self.hold_until - now if is_held and not self.running else None,
        )


class _Head:
    """A head in the KV cache: how many sessions share how many of its tokens."""

    __slots__ = ("lengths", "references", "tokens")

    def __init__(self) -> None:
        self.lengths: Counter[int] = Counter()
        self.references = 0
        self.tokens = 0

    def add(self, length: int, references: int) -> int:
        """Add sessions that share so many tokens, or remove them. Return the change in tokens."""
        self.references += references
        self.lengths[length] += references
        if not self.lengths[length]:
            del self.lengths[length]
        before, self.tokens = self.tokens, max(self.lengths, default=0)
        return self.tokens - before


class SessionPlaces:
    """Who occupies the KV cache.

    `capacity`: the tokens of the KV cache; None if that is not known.
    `used`: the tokens of all places, with each head once.
    `tenants`: the tokens of the places of each tenant, without heads.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.used = 0
        self.tenants: dict[str, int] = {}
        self._heads: dict[str, _Head] = {}
        self._parked: dict[str, PlacedSession] = {}
        self._placements = count()

    def parked(self) -> Iterator[PlacedSession]:
        """Iterate over the sessions with a place and no running turn, least recently used first."""
        return iter(self._parked.values())

    def tokens_needed(self, session: PlacedSession, arrival: TurnArrival) -> int:
        """Return the tokens that a turn needs in addition to its session's place."""
        head = self._heads.get(arrival.head) if arrival.head is not None else None
        missing = max(0, arrival.head_tokens - (head.tokens if head is not None else 0))
        return max(0, arrival.own_tokens - session.tokens) + missing

    def occupy(self, session: PlacedSession, arrival: TurnArrival) -> None:
        """Give a session the place that its turn needs."""
        self._parked.pop(session.key, None)
        head_tokens = arrival.head_tokens
        if session.running and session.head == arrival.head:
            head_tokens = max(head_tokens, session.head_tokens)
        self._change_head(session, arrival.head, head_tokens)
        if session.placement is None:
            session.placement = next(self._placements)
        self._resize(session, max(session.tokens, arrival.own_tokens))

    def park(self, session: PlacedSession, context_tokens: int) -> None:
        """Keep the place of a session whose last running turn has finished."""
        self._resize(session, max(0, context_tokens - session.head_tokens))
        self._parked[session.key] = session

    def leave(self, session: PlacedSession) -> None:
        """Take a session's place away."""
        if session.placement is None:
            return
        self._parked.pop(session.key, None)
        self._resize(session, 0)
        self._change_head(session, None, 0)
        session.placement = None

    def evict(self) -> None:
        """Shrink places as an engine does whose running turns and places exceed the capacity.

        It evicts the least recently used blocks. Those of running turns stay.
        """
        if self.capacity is None or self.used <= self.capacity:
            return
        for session in list(self._parked.values()):
            excess = self.used - self.capacity
            if excess <= 0:
                return
            self.shrink(session, excess)

    def shrink(self, session: PlacedSession, tokens: int) -> None:
        """Take so many tokens of a session's place away, or all of it if it has no more."""
        if session.tokens > tokens:
            self._resize(session, session.tokens - tokens)
        else:
            self.leave(session)

    def select(
        self, candidates: Iterable[PlacedSession], tokens: int, retained_head: str | None
    ) -> list[PlacedSession] | None:
        """Return the first candidates whose places have so many tokens; None if all have fewer.

        `retained_head`: a head that stays in use when its last session leaves.
        """
        selected: list[PlacedSession] = []
        references: Counter[str] = Counter()
        for session in candidates:
            if tokens <= 0:
                break
            selected.append(session)
            tokens -= session.tokens
            if session.head is not None and session.head != retained_head:
                references[session.head] += 1
                head = self._heads[session.head]
                if references[session.head] == head.references:
                    tokens -= head.tokens
        return selected if tokens <= 0 else None

    def can_fit(self, session: PlacedSession, arrival: TurnArrival, now: float) -> bool:
        """Return whether a turn fits if sessions that are not held give up their places."""
        missing = self.used + self.tokens_needed(session, arrival) - (self.capacity or 0)
        idle = (one for one in self.parked() if one is not session and one.hold_until <= now)
        return missing <= 0 or self.select(idle, missing, arrival.head) is not None

    def is_held(self, session: PlacedSession, now: float) -> bool:
        """Return whether a place of another session is held."""
        return any(one is not session and one.hold_until > now for one in self.parked())

    def _resize(self, session: PlacedSession, tokens: int) -> None:
        change = tokens - session.tokens
        session.tokens = tokens
        self.used += change
        share = self.tenants.get(session.tenant, 0) + change
        if share:
            self.tenants[session.tenant] = share
        else:
            self.tenants.pop(session.tenant, None)

    def _change_head(self, session: PlacedSession, key: str | None, tokens: int) -> None:
        """Let a session share so many tokens of a head, and no longer the one of before."""
        if key is not None:
            self.used += self._heads.setdefault(key, _Head()).add(tokens, 1)
        if session.head is not None:
            head = self._heads[session.head]
            self.used += head.add(session.head_tokens, -1)
            if not head.references:
                del self._heads[session.head]
        session.head, session.head_tokens = key, tokens


class KnownSessions(dict[str, PlacedSession]):
    """The sessions of one replica by their keys. Those that do not return are deleted."""

    def __init__(self, places: SessionPlaces) -> None:
        self._places = places
        self._expires_at = 0.0  # when to look for sessions that have not returned

    def find(self, arrival: TurnArrival, now: float) -> PlacedSession:
        """Return the session of a turn, which is new if it is not known."""
        session = self.get(arrival.session)
        if session is None:
            if len(self) >= MAX_KNOWN_SESSIONS or now >= self._expires_at:
                self._delete_absent(now)
            session = self[arrival.session] = PlacedSession(arrival.session, arrival.tenant, now)
            session.callers = arrival.relatives
            session.callers = tuple(one.key for one in self.callers(session, now))
        session.is_ended = False
        return session

    def callers(self, session: PlacedSession, now: float) -> list[PlacedSession]:
        """Return the sessions whose places are held while they wait for this one.

        A session that runs a subagent returns after it: the place of the one would be held until
        the other has run, which would wait for it.
        """
        found = (self.get(key) for key in session.callers)
        return [
            one
            for one in found
            if one is not None
            and one.idle_since is not None
            and one.idle_since <= session.first_seen
            and one.placement is not None
            and one.hold_until > now
        ]

    def _delete_absent(self, now: float) -> None:
        """Delete the sessions that have not returned for long; of too many, the older half."""
        self._expires_at = now + EXPIRY_INTERVAL_SECONDS
        idle = [one for one in self.values() if not one.has_turns]
        idle.sort(key=lambda one: one.hold_until)
        excess = len(idle) // 2 if len(self) >= MAX_KNOWN_SESSIONS else 0
        for number, session in enumerate(idle):
            if number >= excess and now < session.hold_until + SESSION_EXPIRY_SECONDS:
                break
            self._places.leave(session)
            del self[session.key]
