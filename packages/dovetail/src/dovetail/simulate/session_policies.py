"""Admission of sessions in closed-loop simulations: the server's scheduler and its alternatives."""

from collections import deque
from typing import Protocol

from dovetail.routing.session_scheduler import SessionScheduler
from dovetail.routing.session_turns import SchedulingLimits, Turn, TurnArrival, TurnEnd
from dovetail.simulate.agent_sessions import AgentSession, AgentTurn
from dovetail.simulate.session_engine import EngineModel

#: What the server reserves for the output of a turn.
EXPECTED_OUTPUT_TOKENS = 256
#: ThunderAgent pauses sessions between turns above the first use, and resumes them below the other.
THUNDER_PAUSE_USE, THUNDER_RESUME_USE = 0.95, 0.85


class SessionPolicy(Protocol):
    """Decides when a turn is sent to the engine."""

    def arrive(self, turn: AgentTurn, now: float) -> None: ...

    def admit(self, now: float) -> list[AgentTurn]: ...

    def finish_prefill(self, turn: AgentTurn, tokens: int, now: float) -> None: ...

    def finish(self, turn: AgentTurn, now: float) -> None: ...

    def next_deadline(self, now: float) -> float | None: ...


class FcfsPolicy:
    """Sends every turn at once: session scheduling is off."""

    def __init__(self) -> None:
        self._waiting: deque[AgentTurn] = deque()

    def arrive(self, turn: AgentTurn, now: float) -> None:
        self._waiting.append(turn)

    def admit(self, now: float) -> list[AgentTurn]:
        admitted = list(self._waiting)
        self._waiting.clear()
        return admitted

    def finish_prefill(self, turn: AgentTurn, tokens: int, now: float) -> None: ...

    def finish(self, turn: AgentTurn, now: float) -> None: ...

    def next_deadline(self, now: float) -> float | None:
        return None


class CapPolicy(FcfsPolicy):
    """Runs at most `cap` sessions at a time, each from its first turn to its last."""

    def __init__(self, cap: int) -> None:
        super().__init__()
        self._cap = cap
        self._active: set[AgentSession] = set()

    def admit(self, now: float) -> list[AgentTurn]:
        admitted: list[AgentTurn] = []
        for turn in list(self._waiting):
            if turn.session in self._active or len(self._active) < self._cap:
                self._active.add(turn.session)
                self._waiting.remove(turn)
                admitted.append(turn)
        return admitted

    def finish(self, turn: AgentTurn, now: float) -> None:
        if turn.gap_seconds is None:
            self._active.discard(turn.session)


class ThunderPolicy(FcfsPolicy):
    """Pauses sessions between turns by the use of the KV cache, as ThunderAgent does."""

    def __init__(self, model: EngineModel) -> None:
        super().__init__()
        self._capacity = model.tokens
        self._active: dict[AgentSession, int] = {}

    def admit(self, now: float) -> list[AgentTurn]:
        admitted: list[AgentTurn] = []
        for turn in list(self._waiting):
            tokens = turn.prompt_tokens - turn.session.head_tokens
            used = self._used()
            if turn.session not in self._active and self._active:
                resumes = used < THUNDER_RESUME_USE * self._capacity
                if not resumes or used + tokens > THUNDER_PAUSE_USE * self._capacity:
                    continue
            self._active[turn.session] = tokens
            self._waiting.remove(turn)
            admitted.append(turn)
        return admitted

    def finish(self, turn: AgentTurn, now: float) -> None:
        tokens = turn.prompt_tokens + turn.output_tokens - turn.session.head_tokens
        self._active[turn.session] = tokens
        if turn.gap_seconds is None or self._used() > THUNDER_PAUSE_USE * self._capacity:
            del self._active[turn.session]

    def _used(self) -> int:
        heads = {one.head: one.head_tokens for one in self._active}
        return sum(self._active.values()) + sum(heads.values())


class SchedulerPolicy:
    """The session scheduler of the server.

    `knows_gaps`: tool times are known in advance (an oracle), instead of learned.
    """

    def __init__(
        self, model: EngineModel, limits: SchedulingLimits, *, knows_gaps: bool = False
    ) -> None:
        self.scheduler = SessionScheduler(model.tokens, limits)
        self._knows_gaps = knows_gaps
        self._running: dict[AgentTurn, Turn] = {}
        self._sent: dict[AgentTurn, float] = {}
        self._turns: dict[int, AgentTurn] = {}
        self._admitted: list[AgentTurn] = []

    def arrive(self, turn: AgentTurn, now: float) -> None:
        session = turn.session
        arrival = TurnArrival(
            session.name,
            turn.prompt_tokens,
            head=session.head,
            shared_tokens=session.head_tokens,
            expected_output_tokens=EXPECTED_OUTPUT_TOKENS,
        )
        scheduled = self.scheduler.arrive(arrival, now)
        self._running[turn] = scheduled
        if scheduled.state == "running":
            self._admitted.append(turn)
        else:
            self._turns[scheduled.number] = turn

    def admit(self, now: float) -> list[AgentTurn]:
        admitted = [self._turns.pop(one.number) for one in self.scheduler.admit(now)]
        admitted, self._admitted = self._admitted + admitted, []
        for turn in admitted:
            self._sent[turn] = now
            if self._running[turn].has_room:
                self.scheduler.prefill_rate.start(now)
        return admitted

    def finish_prefill(self, turn: AgentTurn, tokens: int, now: float) -> None:
        scheduled, rate = self._running[turn], self.scheduler.prefill_rate
        scheduled.begin_output(now)
        end = rate.end if scheduled.has_room else rate.end_queued
        rate.observe(end(self._sent.pop(turn), now), tokens)

    def finish(self, turn: AgentTurn, now: float) -> None:
        end = TurnEnd(
            turn.prompt_tokens + turn.output_tokens,
            (turn.tool,) if turn.tool is not None else (),
            waits_for_user=turn.tool is None,
            return_seconds=turn.gap_seconds if self._knows_gaps else None,
        )
        self.scheduler.finish(self._running.pop(turn), end, now)

    def next_deadline(self, now: float) -> float | None:
        return self.scheduler.next_deadline(now)


def create_policy(name: str, model: EngineModel, limits: SchedulingLimits) -> SessionPolicy:
    """Create a policy by its name. Raises `ValueError` for unknown names."""
    match name.partition(":"):
        case "fcfs", "", "":
            return FcfsPolicy()
        case "cap", ":", number if number.isdecimal() and int(number) > 0:
            return CapPolicy(int(number))
        case "thunder", "", "":
            return ThunderPolicy(model)
        case ("auto" | "oracle") as kind, "", "":
            return SchedulerPolicy(model, limits, knows_gaps=kind == "oracle")
    raise ValueError(f"must be fcfs, cap:N, thunder, auto or oracle, got {name}")
