"""Simulated records of agent sessions, with the times and token counts of plausible requests."""

import random
import time
from collections.abc import Iterator

import msgspec

from dovetail.http.app import App
from dovetail.telemetry.record import (
    OutputSpan,
    PrefixStats,
    RequestContents,
    RequestRecord,
    ToolCallRecord,
)
from dovetail.ui.data import UiData
from dovetail.ui.live import LiveStatistics
from dovetail_model import Usage

TOOLS = ("Read", "Grep", "Edit", "Bash", "Glob", "Write", "Task")
HARNESSES = ("claude", "codex", "opencode", "pi")
MODEL = "qwen3-coder-30b"


class SimulatedSession:
    """A session whose prompts grow. `agent` is set for a subagent in the same session."""

    def __init__(self, name: str, *, seed: int = 0, agent: str | None = None) -> None:
        self.name = name
        self.agent = agent
        self.random = random.Random(f"{name} {agent} {seed}")
        self.harness = HARNESSES[seed % len(HARNESSES)]
        self.prompt = 11_000 + self.random.randrange(6000)
        self.known = 0  # tokens of the last prompt and its output
        self.pending: tuple[str, ...] = ()
        self.turns = 0

    def turn(
        self, began: float, *, reason: str | None = None, calls: int = 1, failed: bool = False
    ) -> RequestRecord:
        """The next turn. With a `reason`, its prompt diverges after 400 tokens."""
        draw, first = self.random, self.turns == 0
        self.prompt += draw.randrange(200, 2400)
        common = 400 if reason else self.known
        cached = 9_216 if first else common // 16 * 16
        lost = self.known - common if reason else 0
        reasoning, text = draw.randrange(40, 700), draw.randrange(20, 260)
        arguments = [draw.randrange(30, 400) for _ in range(calls)]
        output = 0 if failed else reasoning + text + sum(arguments)
        times = _Clock(draw)
        decoded, admitted = times.after(0.004), times.after(0.003)
        prepared = times.after(0.012)
        first_token = times.after(0.02 + (self.prompt - cached) / 9000)
        spans = OutputSpan(first_token, times.after(reasoning / 110))
        texts = OutputSpan(times.now, times.after(text / 110))
        made = tuple(
            ToolCallRecord(
                f"call_{self.name}_{self.agent}_{self.turns}_{at}",
                draw.choice(TOOLS),
                times.now,
                times.after(size / 110),
            )
            for at, size in enumerate(arguments)
        )
        record = RequestRecord(
            id=f"req_{self.name}_{self.agent or 'main'}_{self.turns}",
            endpoint="messages",
            status=503 if failed else 200,
            duration=times.after(0.004) if not failed else first_token + 0.4,
            began=began,
            model=MODEL,
            requested_model="claude-sonnet-4-5",
            stream=True,
            session=self.name,
            agent=self.agent,
            harness=self.harness,
            usage=None if failed else Usage(self.prompt, output, cached, reasoning),
            decoded=decoded,
            admitted=admitted,
            prepared=prepared,
            first_token=None if failed else first_token,
            last_event=None if failed else times.now - 0.003,
            reasoning_spans=() if failed else (spans,),
            text_spans=() if failed else (texts,),
            calls=() if failed else made,
            results=self.pending,
            prefix=PrefixStats(
                0 if first else common,
                self.prompt,
                lost,
                reason="first" if first else reason,
                turns={"exact": self.turns} if self.turns else {},
                diverged_at=common if reason else None,
                shared=9_216 if first else 0,
            ),
            reprefilled=None if failed else max(0, (0 if first else common) - cached),
            replica=draw.randrange(2),
            notes=("ignored:metadata.user_id",) if first else (),
            finish=None if failed else ("tool_calls" if calls else "stop"),
            error="engine_unavailable" if failed else None,
            reason="connection_refused" if failed else None,
        )
        self.known = self.prompt + output
        self.prompt = self.known
        self.pending = tuple(call.id for call in made)
        self.turns += 1
        return record


class _Clock:
    """Times within a request, each a little random."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.now = 0.0

    def after(self, seconds: float) -> float:
        self.now += seconds * self._draw.uniform(0.7, 1.4)
        return self.now


def long_session(end: float) -> Iterator[RequestRecord]:
    """A session with two subagents and a change of the tool list, which ends at `end`."""
    main = SimulatedSession("6f1c2b0e-fix-empty-basket", seed=0)
    explore = SimulatedSession("6f1c2b0e-fix-empty-basket", seed=0, agent="explore")
    tests = SimulatedSession("6f1c2b0e-fix-empty-basket", seed=0, agent="run-tests")
    plan: list[tuple[SimulatedSession, str | None, int, float]] = [
        *((main, None, calls, pause) for calls, pause in ((1, 0.4), (2, 1.2), (3, 0.8))),
        *(
            (explore, None, calls, pause)
            for calls, pause in ((2, 0.3), (1, 0.5), (2, 0.4), (0, 0.2))
        ),
        (main, None, 1, 2.0),
        (main, "tools", 2, 1.6),
        (main, None, 1, 0.7),
        *((tests, None, calls, pause) for calls, pause in ((1, 4.0), (1, 1.0), (0, 0.1))),
        (main, None, 1, 0.9),
        (main, None, 0, 0.5),
    ]
    at, records = 0.0, []
    for session, reason, calls, pause in plan:
        record = session.turn(at, reason=reason, calls=calls)
        records.append(record)
        overlaps = session is explore and session.turns == 1
        at += (record.duration * 0.4 if overlaps else record.duration) + pause
    shift = end - at
    return (msgspec.structs.replace(one, began=one.began + shift) for one in records)


def fill(data: UiData, sessions: int, now: float, *, turns: int = 6) -> None:
    """Record sessions, the last of which ended just now."""
    for number in range(sessions):
        session = SimulatedSession(f"session-{number:04d}", seed=number)
        began = now - (sessions - number) * 8.0 - 20.0
        for turn in range(turns):
            reason = "header" if number % 7 == 3 and turn == 3 else None
            failed = number % 11 == 5 and turn == 4
            record = session.turn(began, reason=reason, calls=turn % 3, failed=failed)
            data.record_request(record, RequestContents())
            began += record.duration + 1.0


def fill_minutes(app: App, now: float) -> None:
    """Record the sessions of the last ten minutes as if they had been recorded then."""
    data = app.ui
    assert data is not None
    records = list(long_session(now - 3.0))
    for number in range(64):
        session = SimulatedSession(f"session-{number:04d}", seed=number)
        began = now - 600.0 + number * 9.2
        for turn in range(6):
            reason = "header" if number % 13 == 3 and turn == 3 else None
            failed = number % 17 == 5 and turn == 4
            records.append(session.turn(began, reason=reason, calls=turn % 3, failed=failed))
            began += records[-1].duration + 1.5
    clock = SimulatedClock()
    data.live = LiveStatistics(app.metrics, clock)
    histogram = app.metrics.inter_token_histogram(MODEL)
    for record in sorted(records, key=lambda one: one.began + one.duration):
        clock.now = record.began + record.duration
        if clock.now > now:
            break
        data.record_request(record, RequestContents())
        for bucket, count in enumerate((0, 0, 0, 4, 380, 90, 9, 2, 1)):
            histogram.counts[bucket] += count
    clock.real = True


class SimulatedClock:
    """A clock that shows a set time, then the real time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.real = False

    def __call__(self) -> float:
        return time.time() if self.real else self.now
