"""Run server tools within a response: model turn, tool results, next model turn.

Each turn is a request like any other, which extends the previous one by the generated turn and the
results. The ledger therefore splices the exact tokens of the turns before. The client receives all
turns as one response.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec

from dovetail.engines.engine import to_public_error
from dovetail.pipeline.observer import RequestObserver
from dovetail.pipeline.sinks import EventSink
from dovetail.server_tools.result_room import ContextWindow
from dovetail.server_tools.result_text import ReferenceScanner
from dovetail.server_tools.runner import REJECTED_CALL_CODES, CallRunner, ServerTools
from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Citation,
    ContextOverflow,
    DovetailError,
    Event,
    Failure,
    Finish,
    Fold,
    InvalidRequest,
    Message,
    ReasoningDelta,
    Request,
    ServerToolResult,
    SpanEnd,
    TextDelta,
    ToolCallBlock,
    ToolChoice,
    Turn,
    Usage,
)

RunTurn = Callable[[Request, EventSink, RequestObserver], Awaitable[None]]
"""Runs one model turn and emits its events to a sink."""


class ServerToolLoop:
    """Runs one response whose request offers server tools."""

    def __init__(
        self,
        run_turn: RunTurn,
        tools: ServerTools,
        window: ContextWindow,
        sink: EventSink,
        observer: RequestObserver,
    ) -> None:
        self._run_turn = run_turn
        self._window = window
        self._tools = tools
        self._sink = sink
        self._observer = observer
        self._usage = Usage()  # of the finished turns
        self._calls = 0  # of the finished turns
        self._turns = 0

    async def run(self, request: Request) -> None:
        """Emit the events of all turns. Errors after the first event are emitted as `Failure`."""
        if request.sampling.n > 1:
            raise InvalidRequest("`n` must be 1 in a request with server tools", param="n")
        if request.identity.final:  # more turns may follow, which need the session's prefix
            identity = msgspec.structs.replace(request.identity, final=False)
            request = msgspec.structs.replace(request, identity=identity)
        runner = CallRunner(self._tools, request, self._observer.on_server_call)
        try:
            while (following := await self._run_next(request, runner)) is not None:
                request = following
        except ContextOverflow:
            if not self._turns:
                raise
            self._end(Finish("context_window"))  # the client can shorten the conversation
        except DovetailError as error:
            if not self._turns:
                raise
            self._emit([self._usage, to_public_error(error).to_failure()])

    async def _run_next(self, request: Request, runner: CallRunner) -> Request | None:
        """Run a turn and its calls. Returns the request of the next turn, None at the end."""
        runs_calls = request.tool_choice.mode != "none"  # models may call tools nevertheless
        turn = _TurnSink(
            self._sink,
            runner,
            self._usage,
            self._calls,
            first=not self._turns,
            hides=not runs_calls,
        )
        await self._run_turn(request, turn, self._turn_observer())
        self._turns += 1
        self._usage += turn.usage
        if turn.finish is None:
            return None  # a failure ended the response
        message = turn.message()
        calls = [
            (self._calls + at, call)
            for at, call in enumerate(_calls_of(message))
            if runner.kind_of(call.name) is not None and call.complete
        ]
        self._calls += len(_calls_of(message))
        if not calls or turn.finish.reason != "tool_calls":
            return self._end(turn.finish)
        if not runs_calls:
            has_others = len(calls) < len(_calls_of(message))
            return self._end(Finish("tool_calls" if has_others else "stop"))
        room = self._window.room_after(turn.usage.total_tokens, len(calls))
        finished = await runner.run(request, calls, room)
        results = [one.result for one in finished]
        self._usage += _count(results)
        self._emit([*results])
        await self._sink.drain()
        if len(calls) < len(_calls_of(message)):
            return self._end(Finish("tool_calls"))  # the client has calls to run, too
        blocks = tuple(one.block for one in finished)
        return self._continue(
            msgspec.structs.replace(
                request,
                turns=(*request.turns, Turn("assistant", message.blocks), Turn("tool", blocks)),
            )
        )

    def _continue(self, request: Request) -> Request | None:
        """Return the request of the next turn, or end the response at a limit.

        At the limit of turns, a client that cannot continue the response gets a last turn in which
        the model must not call tools.
        """
        sampling, choice = request.sampling, request.tool_choice
        if sampling.max_tokens is not None:
            left = sampling.max_tokens - self._usage.output_tokens
            if left <= 0:
                return self._end(Finish("length"))
            sampling = msgspec.structs.replace(sampling, max_tokens=left)
        if choice.mode in ("named", "required"):
            choice = ToolChoice("auto", None, choice.parallel, choice.allowed)
        if self._turns == self._tools.max_turns:
            if request.can_pause:
                return self._end(Finish("pause"))
            choice = ToolChoice("none")
        return msgspec.structs.replace(request, sampling=sampling, tool_choice=choice)

    def _turn_observer(self) -> RequestObserver:
        """Return the observer of a turn: usage is reported for the whole response."""
        before, observer = self._usage, self._observer

        def on_choice_finished(choice: int, usage: Usage, cached_known: bool) -> None:
            observer.on_choice_finished(choice, before + usage, cached_known)

        return replace(
            observer,
            on_prepared=observer.on_next_turn if self._turns else observer.on_prepared,
            on_choice_finished=on_choice_finished,
        )

    def _end(self, reason: Finish) -> Request | None:
        """End the response. Returns None: there is no further turn."""
        self._observer.on_choice_finished(0, self._usage, False)
        self._emit([self._usage, reason])
        return None

    def _emit(self, events: list[Event]) -> None:
        self._sink.write(0, events)


class _TurnSink:
    """Receives the events of one turn and emits those of the response.

    Usage and finish are withheld: only those of the last turn end the response. Calls are numbered
    through the response, and references in the text become citations. If it `hides` calls of server
    tools, they are not part of the response: the request does not permit them.
    """

    __slots__ = (
        "_calls",
        "_first",
        "_fold",
        "_hidden",
        "_hides",
        "_runner",
        "_scanner",
        "_sink",
        "_usage_before",
        "finish",
        "usage",
    )

    def __init__(
        self,
        sink: EventSink,
        runner: CallRunner,
        usage: Usage,
        calls: int,
        *,
        first: bool,
        hides: bool,
    ) -> None:
        self._sink = sink
        self._runner = runner
        self._usage_before = usage
        self._calls = calls
        self._first = first  # whether the response has not started
        self._hides = hides
        self._hidden: set[int] = set()  # the indices of hidden calls
        self._fold = Fold()
        self._scanner = ReferenceScanner()
        self.usage = Usage()
        self.finish: Finish | None = None

    def write(self, choice: int, events: list[Event]) -> bool:
        emitted: list[Event] = []
        for event in events:
            self._fold.add(event)
            if not self._hides_event(event):
                self._translate(event, emitted)
        return self._sink.write(choice, emitted) if emitted else True

    async def drain(self) -> None:
        await self._sink.drain()

    def message(self) -> Message:
        return self._fold.message()

    def _hides_event(self, event: Event) -> bool:
        match event:
            case CallOpen(index=index, name=name) if self._hides and self._runner.kind_of(name):
                self._hidden.add(index)
                return True
            case CallArgs(index=index) | CallClose(index=index):
                return index in self._hidden
        return False

    def _translate(self, event: Event, emitted: list[Event]) -> None:
        match event:
            case TextDelta(text=text):
                emitted.append(event)
                self._cite(text, emitted)
                return
            case Usage():
                self.usage = event
                if self._first:
                    emitted.append(event)
                self._first = False
            case Finish():
                self.finish = event
            case Failure():
                emitted += [self._usage_before + self.usage, event]
            case CallOpen(index=index, name=name):
                kind = self._runner.kind_of(name)
                emitted.append(
                    msgspec.structs.replace(event, index=index + self._calls, server=kind)
                )
            case CallArgs(index=index) | CallClose(index=index):
                emitted.append(msgspec.structs.replace(event, index=index + self._calls))
            case _:
                emitted.append(event)
        if isinstance(event, SpanEnd | CallOpen | ReasoningDelta):
            self._scanner = ReferenceScanner()  # the next text is another block

    def _cite(self, text: str, emitted: list[Event]) -> None:
        sources = self._runner.sources
        if not sources:
            return
        for start, end, numbers in self._scanner.feed(text):
            cited = (sources[number] for number in numbers if number in sources)
            emitted += [
                Citation(one.number, one.url, one.title, one.text, start, end) for one in cited
            ]


def _calls_of(message: Message) -> list[ToolCallBlock]:
    return [block for block in message.blocks if isinstance(block, ToolCallBlock)]


def _count(results: list[ServerToolResult]) -> Usage:
    """Count the calls that reached a provider."""
    ran = [one for one in results if one.error not in REJECTED_CALL_CODES]
    searches = sum(one.kind == "web_search" for one in ran)
    return Usage(web_searches=searches, web_fetches=len(ran) - searches)
