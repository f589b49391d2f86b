"""Run agent sessions on a simulated engine: the next turn is sent a gap after the last one."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from dovetail.simulate.agent_sessions import AgentSession, AgentTurn
from dovetail.simulate.session_engine import EngineModel, SessionEngine, StartedTurn
from dovetail.simulate.session_policies import FcfsPolicy, SessionPolicy

#: Claude Code gives up after this time without output.
CLIENT_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class FinishedTurn:
    """What happened to a turn. Times count from when the client sent it."""

    session: AgentSession
    ttft_seconds: float
    latency_seconds: float
    wait_seconds: float
    computed_tokens: int
    re_prefilled_tokens: int


@dataclass
class SessionResult:
    """What happened to all sessions under one policy.

    `durations`: the seconds from the first turn's arrival to the last turn's end, by session.
    `first_arrival`, `last_end`: of all turns.
    """

    policy: str
    turns: list[FinishedTurn] = field(default_factory=list)
    durations: dict[AgentSession, float] = field(default_factory=dict)
    first_arrival: float = 0.0
    last_end: float = 0.0

    @property
    def makespan_seconds(self) -> float:
        """The time from the first arrival of a turn to the end of the last turn."""
        return self.last_end - self.first_arrival

    @property
    def sessions_per_hour(self) -> float:
        return len(self.durations) * 3600 / self.makespan_seconds if self.makespan_seconds else 0.0

    @property
    def re_prefilled_tokens(self) -> int:
        return sum(one.re_prefilled_tokens for one in self.turns)

    @property
    def delayed_turns(self) -> int:
        """The number of turns that waited before they were sent to the engine."""
        return sum(one.wait_seconds > 0 for one in self.turns)

    @property
    def timeouts(self) -> int:
        """The number of turns for which a client would have given up."""
        return sum(one.ttft_seconds > CLIENT_TIMEOUT_SECONDS for one in self.turns)

    def ttft(self, q: float) -> float:
        return _quantile([one.ttft_seconds for one in self.turns], q)

    def latency(self, q: float) -> float:
        return _quantile([one.latency_seconds for one in self.turns], q)

    def fairness(self, model: EngineModel) -> float:
        """Return Jain's index of the sessions' speeds, relative to an engine of their own."""
        speeds = [_alone_seconds(one, model) / took for one, took in self.durations.items()]
        return sum(speeds) ** 2 / (len(speeds) * sum(one * one for one in speeds))


def _quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else 0.0


def _alone_seconds(session: AgentSession, model: EngineModel) -> float:
    outputs = sum(turn.output_tokens for turn in session.turns) * model.decode_seconds
    prefill = session.turns[-1].prompt_tokens / model.prefill_tokens_per_second
    return outputs + prefill + sum(turn.gap_seconds or 0.0 for turn in session.turns)


class SessionSimulation:
    """One run of sessions under one policy."""

    def __init__(
        self, sessions: Sequence[AgentSession], model: EngineModel, policy: SessionPolicy
    ) -> None:
        self._engine = SessionEngine(model)
        self._policy = policy
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._sent: dict[AgentTurn, tuple[float, float]] = {}  # times of arrival and admission
        self._started: dict[AgentSession, float] = {}
        self._turns = {one: iter(one.turns) for one in sessions}
        self._followers = {one.follows: one for one in sessions if one.follows is not None}
        self.live_tokens: list[int] = []
        self._contexts: dict[AgentSession, int] = {}
        self._result = SessionResult("")
        for session in sessions:
            if session.follows is None:
                self._schedule(session.start, self._sender(self._turns[session]))

    def run(self, name: str) -> SessionResult:
        """Run all sessions to their ends."""
        self._result.policy = name
        while self._events:
            now, _, act = heapq.heappop(self._events)
            act(now)
            if not self._events or self._events[0][0] > now:
                self._dispatch(now)
        return self._result

    def _dispatch(self, now: float) -> None:
        for turn in self._policy.admit(now):
            self._sent[turn] = (self._sent[turn][0], now)
            self._engine.queue.append(turn)
        for started in self._engine.start(now):
            self._schedule(self._engine.prefill_until, _do_nothing)
            self._schedule(started.first_token_at, self._prefill_finisher(started))
            self._schedule(started.ends_at, self._finisher(started))
        deadline = self._policy.next_deadline(now)
        if deadline is not None:
            self._schedule(deadline, _do_nothing)

    def _schedule(self, time: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), act))

    def _sender(self, turns: Iterator[AgentTurn]) -> Callable[[float], None]:
        def send(now: float) -> None:
            turn = next(turns)
            if not self._started:
                self._result.first_arrival = now
            self._started.setdefault(turn.session, now)
            self._sent[turn] = (now, now)
            self._policy.arrive(turn, now)

        return send

    def _prefill_finisher(self, started: StartedTurn) -> Callable[[float], None]:
        return lambda now: self._policy.finish_prefill(started.turn, started.computed_tokens, now)

    def _finisher(self, started: StartedTurn) -> Callable[[float], None]:
        def finish(now: float) -> None:
            turn = started.turn
            self._engine.finish(turn)
            self._policy.finish(turn, now)
            self._record(started, now)
            self._result.last_end = now
            if turn.gap_seconds is not None:
                self._schedule(now + turn.gap_seconds, self._sender(self._turns[turn.session]))
                return
            self._result.durations[turn.session] = now - self._started[turn.session]
            del self._contexts[turn.session]
            follower = self._followers.get(turn.session)
            if follower is not None:
                self._schedule(now + 1.0, self._sender(self._turns[follower]))

        return finish

    def _record(self, started: StartedTurn, now: float) -> None:
        turn = started.turn
        arrived, admitted = self._sent.pop(turn)
        self._contexts[turn.session] = (
            turn.prompt_tokens + turn.output_tokens - turn.session.head_tokens
        )
        heads = {one.head: one.head_tokens for one in self._contexts}
        self.live_tokens.append(sum(self._contexts.values()) + sum(heads.values()))
        self._result.turns.append(
            FinishedTurn(
                turn.session,
                started.first_token_at - arrived,
                now - arrived,
                admitted - arrived,
                started.computed_tokens,
                started.re_prefilled_tokens,
            )
        )


def _do_nothing(now: float) -> None:
    """Only let the time pass, so that turns are admitted and started."""


def measure_demand(sessions: Sequence[AgentSession], model: EngineModel) -> int:
    """Return the mean tokens of all sessions that are active at a time, without a limit."""
    unlimited = EngineModel(
        1 << 40, model.block_tokens, model.prefill_tokens_per_second, model.decode_seconds
    )
    simulation = SessionSimulation(sessions, unlimited, FcfsPolicy())
    simulation.run("unlimited")
    return sum(simulation.live_tokens) // max(1, len(simulation.live_tokens))
