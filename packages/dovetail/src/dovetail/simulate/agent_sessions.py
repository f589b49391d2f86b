"""Agent sessions for closed-loop simulations: the next turn follows a tool run after the last."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Literal, get_args

from dovetail.routing.tool_times import ToolTimeKey
from dovetail.simulate.trace import RequestTrace, TraceRequest

GapKind = Literal["short", "long"]
GAP_KINDS: tuple[GapKind, ...] = get_args(GapKind)
#: The time of an output token by which gaps are derived from the times of a trace.
TRACE_DECODE_SECONDS = 0.02
#: A gap of a trace that is longer than this is the work of a person.
MIN_USER_GAP_SECONDS = 120.0
_QUICK, _MEDIUM, _SLOW = ("Read", ""), ("Bash", "make"), ("Bash", "pytest")
#: Shares of turns by gap: 86 % return within a second and 95 % within ten; or with long tools.
_GAPS: dict[GapKind, tuple[tuple[float, ToolTimeKey, float, float], ...]] = {
    "short": ((0.86, _QUICK, 0.1, 1.0), (0.95, _MEDIUM, 1.0, 10.0), (1.0, _SLOW, 10.0, 60.0)),
    "long": ((0.5, _QUICK, 0.1, 1.0), (0.8, _MEDIUM, 1.0, 30.0), (1.0, _SLOW, 60.0, 300.0)),
}


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """One turn of a session.

    `blocks`: the blocks of the prompt with the output, which the next prompt continues.
    `gap_seconds`: the time from its end to the next turn; None after the last turn.
    `tool`: the tool that runs after it; None if a person has to continue.
    """

    session: "AgentSession"
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    gap_seconds: float | None
    tool: ToolTimeKey | None


@dataclass(eq=False, slots=True)
class AgentSession:
    """A session: its start in seconds, or the session whose end it waits for.

    `head`, `head_tokens`: the beginning that it shares with other sessions.
    """

    name: str
    start: float
    head: str
    head_tokens: int
    turns: tuple[AgentTurn, ...] = ()
    follows: "AgentSession | None" = None


@dataclass(frozen=True)
class SessionWorkload:
    """Sessions of `concurrency` clients, each of which starts a session when one has ended."""

    sessions: int = 96
    concurrency: int = 24
    gaps: GapKind = "short"
    head_tokens: int = 4_096
    turns: tuple[int, int] = (12, 32)
    first_tokens: tuple[int, int] = (2_000, 8_000)
    grown_tokens: tuple[int, int] = (100, 1_500)
    output_tokens: tuple[int, int] = (50, 300)
    block_tokens: int = 64
    seed: int = 7


def generate_sessions(workload: SessionWorkload) -> list[AgentSession]:
    """Generate sessions. The same workload gives the same sessions."""
    random, ids = Random(workload.seed), count()
    size = workload.block_tokens
    head = [next(ids) for _ in range(workload.head_tokens // size)]
    sessions: list[AgentSession] = []
    for number in range(workload.sessions):
        start = random.uniform(0, 10)
        session = AgentSession(f"s{number}", start, "head", len(head) * size)
        if number >= workload.concurrency:
            session.follows = sessions[number - workload.concurrency]
        blocks = list(head)
        tokens = len(head) * size + random.randint(*workload.first_tokens)
        turns: list[AgentTurn] = []
        length = random.randint(*workload.turns)
        for turn in range(length):
            output = random.randint(*workload.output_tokens)
            blocks += (next(ids) for _ in range((tokens + output) // size - len(blocks)))
            gap, tool = _draw_gap(random, workload.gaps)
            is_last = turn == length - 1
            timing = (None, None) if is_last else (gap, tool)
            turns.append(AgentTurn(session, tokens, output, tuple(blocks), *timing))
            tokens += output + random.randint(*workload.grown_tokens)
        session.turns = tuple(turns)
        sessions.append(session)
    return sessions


def _draw_gap(random: Random, kind: GapKind) -> tuple[float, ToolTimeKey]:
    share = random.random()
    _, tool, low, high = next(one for one in _GAPS[kind] if share <= one[0])
    return random.uniform(low, high), tool


def read_sessions(trace: RequestTrace) -> list[AgentSession]:
    """Derive the sessions of a trace; requests without a session are sessions of one turn."""
    groups: dict[str, list[TraceRequest]] = {}
    for number, request in enumerate(trace.requests):
        groups.setdefault(request.session or f"request-{number}", []).append(request)
    users = Counter(
        block
        for requests in groups.values()
        for block in {*requests[0].blocks, *requests[-1].blocks}
    )
    unknown = count(-1, -1)
    sessions: list[AgentSession] = []
    for name, requests in groups.items():
        first = requests[0]
        shared = [block for block in first.blocks if users[block] > 1]
        head = str(shared[-1]) if shared else name
        session = AgentSession(name, first.time, head, len(shared) * trace.block_tokens)
        session.turns = tuple(_trace_turns(session, requests, trace.block_tokens, unknown))
        sessions.append(session)
    return sessions


def _trace_turns(
    session: AgentSession, requests: list[TraceRequest], size: int, unknown: Iterator[int]
) -> Iterator[AgentTurn]:
    for request, following in zip(requests, [*requests[1:], None], strict=True):
        known = len(request.blocks)
        complete = max(known, (request.prompt_tokens + request.output_tokens) // size)
        blocks = request.blocks
        gap, tool = None, None
        if following is not None:
            if following.blocks[:known] == blocks:
                blocks = following.blocks[:complete]
            gap = max(0.1, following.time - request.time - _busy_seconds(request))
            tool = _tool_key(request, gap)
        blocks += tuple(next(unknown) for _ in range(complete - len(blocks)))
        yield AgentTurn(session, request.prompt_tokens, request.output_tokens, blocks, gap, tool)


def _busy_seconds(request: TraceRequest) -> float:
    if request.seconds is not None:
        return request.seconds
    return request.output_tokens * TRACE_DECODE_SECONDS


def _tool_key(request: TraceRequest, gap_seconds: float) -> ToolTimeKey | None:
    """Return the tool that runs after a request; None if a person has to continue."""
    if request.tools is not None:
        return ("+".join(sorted(set(request.tools))), "") if request.tools else None
    return None if gap_seconds > MIN_USER_GAP_SECONDS else ("tool", "")
