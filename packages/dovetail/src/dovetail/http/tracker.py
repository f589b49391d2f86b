"""The account of one request: what happened to it and when, for metrics, logs, traces, headers."""

import logging
import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter

from dovetail.http.course import Course
from dovetail.http.exchange import Exchange
from dovetail.http.memory import release
from dovetail.http.pipeline_tracker import Timeline
from dovetail.http.standing import results_of, short, short_or_none, traceparent
from dovetail.pipeline.execution import RequestObserver
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.pipeline.registry import ModelEntry
from dovetail.prompt.diagnosis import describe_prefix, prefix_headers
from dovetail.telemetry.log import log_request
from dovetail.telemetry.metrics import INTER_TOKEN_BUCKETS_SECONDS, InterTokenHistogram, Metrics
from dovetail.telemetry.record import RequestContents, RequestRecorder, RequestRecord
from dovetail_model import DovetailError, Event, Failure, Finish, Request, Usage

HUNG_UP = 499  # no status that anybody gets: the client is gone
UNCOUNTED = 64  # batches whose times may wait: counted in one go, each costs a fraction

_log = logging.getLogger(__name__)


class Account:
    """Kept from the first byte of a request to the last of its answer."""

    __slots__ = (
        "_admitted",
        "_cancelled",
        "_course",
        "_decoded",
        "_endpoint",
        "_ends",
        "_error",
        "_exchange",
        "_first",
        "_flowing",
        "_gaps",
        "_log_prefix",
        "_metrics",
        "_model",
        "_muted",
        "_queued",
        "_reason",
        "_recorders",
        "_request",
        "_status",
        "_timeline",
        "_times",
        "body",
        "detached",
        "unstreamed",
    )

    def __init__(
        self,
        exchange: Exchange,
        endpoint: str,
        metrics: Metrics,
        *,
        log_prefix: bool = False,
        recorders: Sequence[RequestRecorder] = (),
    ) -> None:
        self._exchange = exchange
        self._endpoint = endpoint
        self._metrics = metrics
        self._log_prefix = log_prefix
        self._recorders = recorders
        self._muted = False
        self._request: Request | None = None
        self._model = ""
        self._course = Course(metrics)
        self._gaps = InterTokenHistogram()
        self._queued = False
        self._decoded: float | None = None
        self._admitted: float | None = None
        self._first: float | None = None
        self._flowing: type[Event] | None = None  # more of what is open: nothing to look at
        self._timeline = Timeline()
        self._ends: list[list[Event]] = []  # of each choice, the last events
        self._error: str | None = None
        self._reason: str | None = None
        self._status: int | None = None
        self._cancelled = False
        self.unstreamed = False  # whether no stream was asked for, though the answer is one
        self.detached = False  # whether the answer outlives the request, and then closes this
        self.body: bytes | None = None  # what was asked, where payloads are kept
        self._times = [exchange.started]  # when the engine was heard: the last is not forgotten

    def open(self) -> None:
        """The request is counted from now on."""
        self._metrics.start_request(self._endpoint)

    def asked(self, request: Request, served: ModelEntry) -> None:
        """The request is understood and its model is known."""
        self._decoded = perf_counter()
        self._request = request
        self._model = served.name
        self._course = Course(self._metrics, served.name)
        self._gaps = self._metrics.inter_token_histogram(served.name)
        self._ends = [[] for _ in range(max(1, request.sampling.n))]
        self._queued = True
        self._metrics.add_queued(+1)

    def admitted(self) -> None:
        """There is room for the request."""
        self._admitted = perf_counter()

    def watch(self) -> RequestObserver:
        """What the pipeline tells this account."""
        return self._course.watch()

    @property
    def prepared(self) -> PreparedRequest | None:
        return self._course.prepared

    def heard(self, choice: int, events: list[Event]) -> None:
        """More of the answer. Runs for every batch of tokens, so it does next to nothing."""
        self._times.append(perf_counter())
        self._ends[choice] = events
        if len(events) > 1 or type(events[0]) is not self._flowing or len(self._times) > UNCOUNTED:
            self._look_closer(choice, events)

    def _look_closer(self, choice: int, events: list[Event]) -> None:
        if self._first is None:
            self._await_first(events)
        elif len(self._times) > UNCOUNTED:
            self._count_gaps()
        flowing = self._flowing
        for event in events:
            if type(event) is not flowing:
                self._mark(choice, events)
                return

    def _mark(self, choice: int, events: list[Event]) -> None:
        """Something begins or ends with this batch."""
        flowing = self._timeline.add(choice, events, self._times[-1])
        if choice == 0:
            self._flowing = flowing

    def _await_first(self, events: list[Event]) -> None:
        """The true input tokens are told before the model has said anything."""
        del self._times[:-1]
        if len(events) > 1 or type(events[0]) is not Usage:
            self._first = self._times[-1]
            self._leave_queue()

    def _count_gaps(self) -> None:
        """The times between batches, from the first tokens on."""
        times, counts = self._times, self._gaps.counts
        for before, now in pairwise(times):
            counts[bisect_left(INTER_TOKEN_BUCKETS_SECONDS, now - before)] += 1
        self._gaps.sum += times[-1] - times[0]
        del times[:-1]

    @property
    def silent(self) -> bool:
        """Whether the model has said nothing yet."""
        return self._first is None

    @property
    def thinks(self) -> bool:
        """Whether the prompt has opened a thought that the model goes on with."""
        return self.prepared is not None and self.prepared.prompt.in_reasoning

    def silence(self) -> float:
        """Seconds since something was heard."""
        return perf_counter() - self._times[-1]

    @property
    def failure(self) -> Failure | None:
        """The failure that the answer ended with, if it did."""
        ends = (events[-1] for events in self._ends if events)
        return next((end for end in ends if isinstance(end, Failure)), None)

    @property
    def usage(self) -> Usage | None:
        """The tokens of all choices. Their prompt is one, and counted once."""
        told = list(self._course.said.values()) or [
            e for events in self._ends for e in events[-2:] if isinstance(e, Usage)
        ]
        if not told:
            return self._prompt_alone()
        return Usage(
            input_tokens=max(usage.input_tokens for usage in told),
            output_tokens=sum(usage.output_tokens for usage in told),
            cached_tokens=min(usage.cached_tokens for usage in told),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in told),
        )

    def headers(self) -> list[tuple[str, str]]:
        """What the client asked to be told about its request."""
        found: list[tuple[str, str]] = []
        if self.prepared is not None and self._exchange.wants("prefix"):
            found += prefix_headers(self.prepared.diagnosis)
        notes = [*self._course.notes, *(self._notes() if self._exchange.wants("notes") else ())]
        if notes or self._exchange.wants("notes"):
            found.append(("x-dovetail-diagnostics", ", ".join(notes)))
        return found

    def _notes(self) -> list[str]:
        """What was done to the request that its sender may not expect."""
        notes = list(dict.fromkeys(self.prepared.prompt.notes)) if self.prepared else []
        if self._request is not None:
            notes += [f"ignored:{path}" for path in self._request.ignored]
        return notes

    def failed(self, error: DovetailError, status: int) -> None:
        self._error, self._reason, self._status = error.kind, error.reason, status

    @property
    def erred(self) -> bool:
        """Whether the request was answered with an error."""
        return self._error is not None

    @property
    def refused(self) -> bool:
        """Whether its key was not good enough."""
        return self._status in (401, 403)

    def mute(self) -> None:
        """The request is counted, and leaves no line: strangers send as many as they like."""
        self._muted = True

    def hung_up(self) -> None:
        self._status = HUNG_UP

    def called_off(self) -> None:
        """Its client wants the answer no more, and was told that it ended so."""
        self._cancelled, self._status = True, 200

    def close(self, answer: bytes | None = None) -> None:
        """The request is over. `answer` is what was sent, where payloads are kept."""
        release(self._exchange)
        self._count_gaps()
        self._leave_queue()
        end = self._end()
        self._metrics.record_request(end)
        if self._muted:
            return
        log_request(end, self._exchange.peer)
        if self._recorders:
            made = self.prepared
            inside = RequestContents(
                ids=None if made is None else made.prompt.ids,
                key=b"" if made is None else made.owner.chain_key,
                body=self.body,
                answer=answer,
            )
            for recorder in self._recorders:
                try:
                    recorder.record_request(end, inside)
                except Exception:  # who records may fail: the request did not
                    _log.exception("recorder_failed")

    def _leave_queue(self) -> None:
        if self._queued:
            self._queued = False
            self._metrics.add_queued(-1)

    def _end(self) -> RequestRecord:
        exchange, request, now = self._exchange, self._request, perf_counter()
        start, duration = exchange.started, now - exchange.started
        identity = request.identity if request is not None else None
        course, usage = self._course, self.usage
        return RequestRecord(
            id=exchange.request_id,
            endpoint=self._endpoint,
            status=self._status or exchange.status or HUNG_UP,
            duration=duration,
            began=time.time() - duration,
            transport=exchange.transport,
            traceparent=traceparent(exchange.headers.get("traceparent")),
            model=self._model,
            asked=short(request.model) if request is not None else "",
            stream=request is not None and request.stream and not self.unstreamed,
            tenant=exchange.tenant,
            session=short_or_none(identity.session) if identity is not None else None,
            parent=short_or_none(identity.parent) if identity is not None else None,
            agent=short_or_none(identity.agent) if identity is not None else None,
            compaction=identity is not None and identity.compaction,
            usage=usage,
            decoded=self._since(self._decoded),
            admitted=self._since(self._admitted),
            prepared=self._since(course.prepared_at),
            first_token=self._since(self._first),
            said=self._since(self._timeline.said),
            thoughts=self._timeline.thoughts(start, self._timeline.said or now),
            calls=self._timeline.calls(start, _tool_names(request)),
            results=() if request is None else results_of(request),
            prefix=course.prefix,
            reprefilled=course.reprefilled(usage),
            replica=course.replica,
            migrations=course.migrations,
            carried=course.carried,
            diagnostics=self._timeline.diagnostics,
            finish=self._finish(),
            error=self._error,
            reason=self._reason,
            disconnected=self._status == HUNG_UP,
            prefix_line=self._prefix_line(),
        )

    def _since(self, at: float | None) -> float | None:
        """Seconds from the request's beginning."""
        return None if at is None else at - self._exchange.started

    def _prefix_line(self) -> str | None:
        if self.prepared is None or not self._log_prefix:
            return None
        return describe_prefix(self.prepared.diagnosis)

    def _finish(self) -> str | None:
        """Why the answer ended; of several choices, the first one's reason."""
        if self.failure is not None:
            return "error"
        if self._cancelled:
            return "cancelled"
        ends = (events[-1] for events in self._ends if events)
        return next((end.reason for end in ends if isinstance(end, Finish)), None)

    def _prompt_alone(self) -> Usage | None:
        """What is known of an answer that nobody heard the end of."""
        if self.prepared is None or self._first is None:
            return None
        return Usage(input_tokens=len(self.prepared.prompt.ids))


def _tool_names(request: Request | None) -> frozenset[str]:
    return frozenset(tool.name for tool in request.tools) if request is not None else frozenset()
