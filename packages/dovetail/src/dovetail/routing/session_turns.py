"""Turns and sessions as the session scheduler receives and reports them."""

from dataclasses import dataclass
from typing import Literal

from dovetail.routing.tool_times import ToolTimeKey

#: A waiting turn has not been sent to the engine, a running one has.
TurnState = Literal["waiting", "running", "finished"]
#: Held: between turns, with its place in the KV cache. Idle: between turns, and others may take
#: the place. Paused: the next turn waits.
SessionStatus = Literal["running", "paused", "held", "idle"]


@dataclass(frozen=True, slots=True)
class SchedulingLimits:
    """The bounds of session scheduling.

    `max_wait_seconds`: a turn that has waited this long runs, whatever the KV cache holds. Clients
    give up after longer waits (Claude Code: 300 seconds).
    `rotation_seconds`: a turn that has waited this long takes the place of a session between two
    turns, even if that session is expected back soon. Turns of tenants that use less than their
    share of the KV cache do so after a quarter of the time.
    `rotation_factor`: turns take such places earlier, after this multiple of the time in which the
    engine prefills all waiting turns: rotation then costs a limited part of the engine's time.
    `prefill_tokens_per_second`: the rate at which the engine prefills, until it was measured.
    `hold_factor`: the longest time for which a place is held for a session that is expected back,
    relative to the time in which the engine prefills that session again. Places are held for less
    where the engine prefills so fast that waiting costs more.
    `headroom`: the part of the KV cache that sessions with a place can grow into: turns without a
    place are not admitted into it while others wait.
    `headroom_seconds`: the headroom is smaller where the engine prefills a turn in less time.
    """

    max_wait_seconds: float = 240.0
    rotation_seconds: float = 150.0
    rotation_factor: float = 10.0
    prefill_tokens_per_second: float = 10_000.0
    hold_factor: float = 12.0
    headroom: float = 0.1
    headroom_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class TurnProfile:
    """What scheduling must know of a turn, in addition to its engine request.

    `session`: the session that the client named, or that its history identifies.
    `branch`: the conversation within the session: a subagent with another first message, system
    text, adapter or other tools has one of its own.
    `parent`: the session that started this one, if the client names it.
    `head`: identifies the system text and the tools, within the part of the cache that the tenant
    uses.
    `urgency`: a higher value is admitted first.
    `background`: no client waits for the response.
    `choices`: how many turns share the prompt and have outputs of their own.
    """

    session: str
    branch: str
    tenant: str
    head: str
    urgency: int = 0
    background: bool = False
    choices: int = 1
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class TurnArrival:
    """A turn that a session wants to run.

    `session`: the key of the session; subagents have keys of their own.
    `prompt_tokens`: the length of the prompt.
    `head`: identifies the beginning of the prompt that other sessions have in common with it.
    `shared_tokens`: the length of that beginning. The KV cache holds it once for all sessions.
    `expected_output_tokens`: reserved for the output.
    `priority`: a higher priority is admitted first.
    `background`: no client waits for the response: interactive turns of equal priority go first.
    `relatives`: the other conversations of the client's session, one of which may have started this
    one as a subagent.
    """

    session: str
    prompt_tokens: int
    tenant: str = ""
    head: str | None = None
    shared_tokens: int = 0
    expected_output_tokens: int = 0
    priority: int = 0
    background: bool = False
    relatives: tuple[str, ...] = ()

    @property
    def head_tokens(self) -> int:
        """The tokens that the KV cache holds once for all sessions with this head."""
        return min(self.shared_tokens, self.prompt_tokens) if self.head is not None else 0

    @property
    def own_tokens(self) -> int:
        """The tokens that only this session needs, with the output."""
        return self.prompt_tokens - self.head_tokens + self.expected_output_tokens


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended.

    `context_tokens`: the prompt with the output, which the next prompt is expected to continue.
    `tool_keys`: the tools that the client runs now.
    `waits_for_user`: the client runs no tool; a person has to continue.
    `return_seconds`: the time until the next turn, if it is known.
    """

    context_tokens: int
    tool_keys: tuple[ToolTimeKey, ...] = ()
    waits_for_user: bool = False
    return_seconds: float | None = None


class Turn:
    """One turn of a session in the scheduler.

    `number`: the order of arrival.
    `started_at`: when it was admitted; None while it waits.
    `is_forced`: it was admitted without room because it had waited for too long.
    `has_room`: there was room when it was admitted, so it does not wait in the engine. There may be
    none if it was forced or if scheduling was suspended.
    `first_token_at`: when its output began; None if that is not known.
    `predicted_seconds`, `actual_seconds`: the time between the previous turn and this one, as it
    was predicted and as it was; None if there was no prediction.
    """

    __slots__ = (
        "actual_seconds",
        "arrival",
        "arrived_at",
        "first_token_at",
        "has_room",
        "is_forced",
        "number",
        "predicted_seconds",
        "started_at",
        "state",
    )

    def __init__(self, arrival: TurnArrival, number: int, now: float) -> None:
        self.arrival = arrival
        self.number = number
        self.arrived_at = now
        self.started_at: float | None = None
        self.state: TurnState = "waiting"
        self.is_forced = False
        self.has_room = True
        self.first_token_at: float | None = None
        self.predicted_seconds: float | None = None
        self.actual_seconds: float | None = None

    def begin_output(self, now: float) -> None:
        """Record the first token of the turn, which may have several requests."""
        if self.first_token_at is None:
            self.first_token_at = now

    @property
    def waited_seconds(self) -> float | None:
        """The time that the turn waited; None while it waits."""
        return None if self.started_at is None else self.started_at - self.arrived_at


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session as `/admin/sessions` shows it.

    `tokens`: its tokens in the KV cache, without the head that it shares; 0 without a place.
    `waiting_seconds`: how long its next turn has waited.
    `expected_in_seconds`: the remaining time for which its place is held.
    """

    session: str
    tenant: str
    status: SessionStatus
    tokens: int
    waiting_seconds: float | None = None
    expected_in_seconds: float | None = None


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the start.

    `admitted`: turns that were admitted.
    `delayed`: admitted turns that had to wait.
    `forced`: turns that were admitted without room after the longest wait.
    `rotated`: places that a turn took from a session that was expected back.
    `yielded`: places that a turn took from a session that was not expected back soon.
    """

    admitted: int = 0
    delayed: int = 0
    forced: int = 0
    rotated: int = 0
    yielded: int = 0
