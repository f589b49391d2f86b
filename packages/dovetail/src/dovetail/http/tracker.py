"""Track the phases and the outcome of a request for metrics, logs, traces and headers."""

import logging
import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter

from dovetail.http.diagnostics import DIAGNOSTICS_HEADER, ResponseDiagnostics
from dovetail.http.exchange import ApiExchange
from dovetail.http.memory import release_memory
from dovetail.http.pipeline_tracker import (
    OutputTimeline,
    PipelineTracker,
    client_traceparent,
    new_tool_result_ids,
    truncate_name,
    truncate_names,
)
from dovetail.pipeline.execution import RequestObserver
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.pipeline.registry import ModelEntry
from dovetail.prompt.prefix_report import describe_prefix, divergence_text, prefix_headers
from dovetail.telemetry.log import log_request
from dovetail.telemetry.metrics import INTER_TOKEN_BUCKETS_SECONDS, InterTokenHistogram, Metrics
from dovetail.telemetry.record import (
    RequestContents,
    RequestRecord,
    RequestRecorder,
    StartedRequest,
)
from dovetail.usage.counts import UsageKey
from dovetail.usage.writer import UsageWriter
from dovetail_model import DovetailError, Event, Failure, Finish, Identity, Request, Usage
from dovetail_protocols import read_harness

CLIENT_CLOSED_REQUEST = 499  # logged, never sent: the client has disconnected
MAX_PENDING_TIMES = 64  # batches whose times are recorded together, which is cheaper

_NO_IDENTITY = Identity()
_log = logging.getLogger(__name__)


class RequestTracker:
    """Collect the record of a request, from its first byte to the last byte of its response."""

    __slots__ = (
        "_accounting",
        "_accounting_number",
        "_admitted_at",
        "_cancelled",
        "_decoded_at",
        "_endpoint",
        "_error",
        "_event_times",
        "_exchange",
        "_first_token_at",
        "_harness",
        "_identity",
        "_intervals",
        "_last_events",
        "_log_prefix",
        "_log_suppressed",
        "_metrics",
        "_model",
        "_open_event_type",
        "_pipeline",
        "_queued",
        "_reason",
        "_recorders",
        "_request",
        "_status",
        "_timeline",
        "detached",
        "diagnostics",
        "request_body",
        "stream_not_requested",
    )

    def __init__(
        self,
        exchange: ApiExchange,
        endpoint: str,
        metrics: Metrics,
        *,
        log_prefix: bool = False,
        recorders: Sequence[RequestRecorder] = (),
        accounting: UsageWriter | None = None,
    ) -> None:
        self._exchange = exchange
        self._endpoint = endpoint
        self._metrics = metrics
        self._log_prefix = log_prefix
        self._recorders = recorders
        self._accounting = accounting
        self._accounting_number: int | None = None  # of the announced request
        self._log_suppressed = False
        self._request: Request | None = None
        self._identity = _NO_IDENTITY
        self._harness = read_harness(exchange.headers)
        self._model = ""
        #: Findings that are reported to the client, whether or not it requests them.
        self.diagnostics = ResponseDiagnostics()
        self._pipeline = PipelineTracker(metrics, self.diagnostics)
        self._intervals = InterTokenHistogram()
        self._queued = False
        self._decoded_at: float | None = None
        self._admitted_at: float | None = None
        self._first_token_at: float | None = None
        self._open_event_type: type[Event] | None = None  # events of this type are not inspected
        self._timeline = OutputTimeline(self.diagnostics)
        self._last_events: list[list[Event]] = []  # the last batch of each choice
        self._error: str | None = None
        self._reason: str | None = None
        self._status: int | None = None
        self._cancelled = False
        #: Whether the response is generated as a stream though the client did not request one.
        self.stream_not_requested = False
        self.detached = False  # whether a background run outlives the request and calls `finish`
        self.request_body: bytes | None = None  # set if payloads are captured
        #: Times of the batches that are not recorded yet, after that of the last recorded one.
        self._event_times = [exchange.started_at]

    def start(self) -> None:
        """Count the request as started."""
        self._metrics.start_request(self._endpoint)

    def on_decoded(self, request: Request, entry: ModelEntry) -> None:
        """Record that the request is decoded and its model is found."""
        self._decoded_at = perf_counter()
        self._request = request
        self._identity = truncate_names(request.identity)
        self._model = entry.name
        if self._accounting is not None:
            age = self._decoded_at - self._exchange.started_at
            self._accounting_number = self._accounting.begin(self._usage_key(), entry.prices, age)
        self._pipeline = PipelineTracker(self._metrics, self.diagnostics, entry.name)
        for path in entry.ignored_fields(request):
            self.diagnostics.add(f"ignored:{path}")
        self._intervals = self._metrics.inter_token_histogram(entry.name)
        self._last_events = [[] for _ in range(max(1, request.sampling.n))]
        self._queued = True
        self._metrics.add_queued(+1)
        self._report_start()

    def _usage_key(self) -> UsageKey:
        exchange, session = self._exchange, self._identity.session or ""
        return UsageKey(exchange.tenant, exchange.caller.name, self._model, session, self._harness)

    def _report_start(self) -> None:
        recorders = [one for one in self._recorders if hasattr(one, "start_request")]
        if not recorders:
            return
        started = StartedRequest(
            at=time.time(),
            tenant=self._exchange.tenant,
            model=self._model,
            session=self._identity.session,
            parent=self._identity.parent,
            agent=self._identity.agent,
            harness=self._harness,
        )
        for recorder in recorders:
            recorder.start_request(started)

    def on_admitted(self) -> None:
        """Record that the request is admitted."""
        self._admitted_at = perf_counter()

    def create_observer(self) -> RequestObserver:
        """Create the callbacks for the pipeline."""
        return self._pipeline.create_observer()

    @property
    def prepared(self) -> PreparedRequest | None:
        return self._pipeline.prepared

    def on_events(self, choice: int, events: list[Event]) -> None:
        """Record a batch of events. It runs for every batch of tokens, so it must be cheap."""
        self._event_times.append(perf_counter())
        self._last_events[choice] = events
        if (
            len(events) > 1
            or type(events[0]) is not self._open_event_type
            or len(self._event_times) > MAX_PENDING_TIMES
        ):
            self._inspect_events(choice, events)

    def _inspect_events(self, choice: int, events: list[Event]) -> None:
        if self._first_token_at is None:
            self._check_first_token(events)
        elif len(self._event_times) > MAX_PENDING_TIMES:
            self._record_intervals()
        open_type = self._open_event_type
        for event in events:
            if type(event) is not open_type:
                self._update_timeline(choice, events)
                return

    def _update_timeline(self, choice: int, events: list[Event]) -> None:
        """Record a batch in which a part of the output starts or ends."""
        open_type = self._timeline.add(choice, events, self._event_times[-1])
        if choice == 0:
            self._open_event_type = open_type

    def _check_first_token(self, events: list[Event]) -> None:
        """Record the first output. The input token count may be reported before it."""
        del self._event_times[:-1]
        if len(events) > 1 or type(events[0]) is not Usage:
            self._first_token_at = self._event_times[-1]
            self._leave_queue()

    def _record_intervals(self) -> None:
        """Record the intervals between batches, starting with the first tokens."""
        times, counts = self._event_times, self._intervals.counts
        for before, now in pairwise(times):
            counts[bisect_left(INTER_TOKEN_BUCKETS_SECONDS, now - before)] += 1
        self._intervals.sum += times[-1] - times[0]
        del times[:-1]

    @property
    def awaits_first_token(self) -> bool:
        """Whether there is no output yet."""
        return self._first_token_at is None

    @property
    def starts_in_reasoning(self) -> bool:
        """Whether the prompt ends in reasoning that the model continues."""
        return self.prepared is not None and self.prepared.prompt.in_reasoning

    def idle_seconds(self) -> float:
        """Return the seconds since the last batch."""
        return perf_counter() - self._event_times[-1]

    @property
    def failure(self) -> Failure | None:
        """The failure that ended the response, if any."""
        for events in self._last_events:
            if events and isinstance(events[-1], Failure):
                return events[-1]
        return None

    @property
    def usage(self) -> Usage | None:
        """The usage of all choices. Their shared prompt is counted once."""
        reported = [*self._pipeline.usage_by_choice.values()] or [
            e for events in self._last_events for e in events[-2:] if isinstance(e, Usage)
        ]
        if not reported:
            return self._prompt_usage()
        if len(reported) == 1:
            return reported[0]
        return Usage(
            input_tokens=max(usage.input_tokens for usage in reported),
            output_tokens=sum(usage.output_tokens for usage in reported),
            cached_tokens=min(usage.cached_tokens for usage in reported),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in reported),
            web_searches=sum(usage.web_searches for usage in reported),
            web_fetches=sum(usage.web_fetches for usage in reported),
        )

    def debug_headers(self) -> list[tuple[str, str]]:
        """Return the headers with findings so far, and with diagnostics that were requested."""
        headers: list[tuple[str, str]] = []
        if self.prepared is not None and self._exchange.wants_debug("prefix"):
            headers += prefix_headers(self.prepared.diagnosis)
        if self.diagnostics.unreported or self._exchange.wants_debug("notes"):
            headers.append((DIAGNOSTICS_HEADER, self.diagnostics.header_value()))
        return headers

    def on_error(self, error: DovetailError, status: int) -> None:
        self._error, self._reason, self._status = error.kind, error.reason, status

    @property
    def has_error(self) -> bool:
        """Whether the request ended with an error."""
        return self._error is not None

    @property
    def is_key_rejected(self) -> bool:
        """Whether the key was rejected."""
        return self._status in (401, 403)

    def suppress_log(self) -> None:
        """Count the request without a log line: unauthenticated clients must not fill the log."""
        self._log_suppressed = True

    def on_disconnect(self) -> None:
        self._status = CLIENT_CLOSED_REQUEST

    def on_cancelled(self) -> None:
        """Record that the client cancelled the response."""
        self._cancelled, self._status = True, 200

    def finish(self, response_body: bytes | None = None) -> None:
        """Finish the record and report it. `response_body` is set if payloads are captured."""
        usage = self.usage
        release_memory(self._exchange, usage.output_tokens if usage is not None else 0)
        self._record_intervals()
        self._leave_queue()
        record = self._build_record(usage)
        self._metrics.record_request(record)
        if self._accounting is not None and self._accounting_number is not None:
            self._accounting.finish(self._accounting_number, record)
        if self._log_suppressed:
            return
        log_request(record, self._exchange.peer)
        if self._recorders:
            prepared = self.prepared
            contents = RequestContents(
                ids=None if prepared is None else prepared.prompt.ids,
                key=b"" if prepared is None else prepared.owner.chain_key,
                body=self.request_body,
                response_body=response_body,
                divergence=None if prepared is None else divergence_text(prepared.diagnosis),
            )
            for recorder in self._recorders:
                try:
                    recorder.record_request(record, contents)
                except Exception:  # a failed recorder must not fail the request
                    _log.exception("recorder_failed")

    def _leave_queue(self) -> None:
        if self._queued:
            self._queued = False
            self._metrics.add_queued(-1)

    def _build_record(self, usage: Usage | None) -> RequestRecord:
        exchange, request, now = self._exchange, self._request, perf_counter()
        start, duration = exchange.started_at, now - exchange.started_at
        identity, pipeline, timeline = self._identity, self._pipeline, self._timeline
        ended_at = timeline.ended_at
        return RequestRecord(
            id=exchange.request_id,
            endpoint=self._endpoint,
            status=self._status or exchange.status or CLIENT_CLOSED_REQUEST,
            duration=duration,
            began=time.time() - duration,
            transport=exchange.transport,
            traceparent=client_traceparent(exchange.headers.get("traceparent")),
            model=self._model,
            requested_model=truncate_name(request.model) if request is not None else "",
            stream=request is not None and request.stream and not self.stream_not_requested,
            tenant=exchange.tenant,
            key=exchange.caller.name,
            session=identity.session,
            parent=identity.parent,
            agent=identity.agent,
            harness=self._harness,
            compaction=identity.compaction,
            usage=usage,
            decoded=self._elapsed(self._decoded_at),
            admitted=self._elapsed(self._admitted_at),
            prepared=self._elapsed(pipeline.prepared_at),
            first_token=self._elapsed(self._first_token_at),
            last_event=self._elapsed(ended_at),
            reasoning_spans=timeline.reasoning_spans(start, ended_at or now),
            text_spans=timeline.text_spans(start, ended_at or now),
            calls=timeline.tool_calls(start, request.tools if request is not None else ()),
            results=() if request is None else new_tool_result_ids(request),
            prefix=pipeline.prefix,
            reprefilled=pipeline.reprefilled_tokens(usage),
            replica=pipeline.replica,
            migrations=pipeline.migrations,
            carried=pipeline.carried_tokens,
            diagnostics=timeline.diagnostics,
            notes=self.diagnostics.notes,
            finish=self._finish_reason(),
            error=self._error,
            reason=self._reason,
            disconnected=self._status == CLIENT_CLOSED_REQUEST,
            prefix_line=self._prefix_line(),
        )

    def _elapsed(self, at: float | None) -> float | None:
        """Return the seconds from the request's arrival to `at`."""
        return None if at is None else at - self._exchange.started_at

    def _prefix_line(self) -> str | None:
        if self.prepared is None or not self._log_prefix:
            return None
        return describe_prefix(self.prepared.diagnosis)

    def _finish_reason(self) -> str | None:
        """Return the finish reason of the first finished choice."""
        if self.failure is not None:
            return "error"
        if self._cancelled:
            return "cancelled"
        for events in self._last_events:
            if events and isinstance(events[-1], Finish):
                return events[-1].reason
        return None

    def _prompt_usage(self) -> Usage | None:
        """Return the usage of a response that did not finish, as far as it is known."""
        if self.prepared is None or self._first_token_at is None:
            return None
        return Usage(input_tokens=len(self.prepared.prompt.ids))
