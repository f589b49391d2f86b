"""Sends a span for each request that is over to an OpenTelemetry collector.

The ids of a span are made when its request begins, for engines to name it as their parent; the
span itself is made at the end. It is sent by a thread of the SDK: nothing here waits for anything.
"""

import os
from importlib.metadata import version
from threading import Thread
from uuid import uuid4

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

from dovetail.net.trace_context import SpanRef, current_trace
from dovetail.telemetry.otel.attributes import ChildSpan, child_spans, span_attributes, span_name
from dovetail.telemetry.otel.decided import (
    make_tracer_provider,
    sampler_from_environment,
    to_otel_context,
)
from dovetail.telemetry.record import RequestContents, RequestRecord

_FLUSH_TIMEOUT_SECONDS = 5.0  # seconds for what is still to be sent when the server stops
_NANOSECONDS_PER_SECOND = 1_000_000_000
_MIN_ERROR_STATUS = (
    500  # from this status on it is the server's: a client's mistake is no fault of the span
)


class OtelRecorder:
    """A recorder that sends spans to an address.

    Sampling, headers, certificates and queues are set by the variables that the SDK knows.
    """

    def __init__(self, address: str) -> None:
        self._sampler = sampler_from_environment()
        self._provider, self._ids = make_tracer_provider(_resource_attributes())
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(address)))
        self._tracer = self._provider.get_tracer("dovetail", version("dovetail"))

    def start_span(self, parent: SpanRef | None) -> SpanRef:
        """The ids of a span for a request that begins now, in the client's trace if it has one."""
        trace, span = self._ids.new_ids(parent.trace if parent is not None else None)
        found = self._sampler.should_sample(to_otel_context(parent), int(trace, 16), "request")
        return SpanRef(trace, span, found.decision is Decision.RECORD_AND_SAMPLE)

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None:
        """The span of a request, and those of its parts."""
        place = current_trace()
        if place.own is None or not place.own.sampled:
            return
        began = int(record.began * _NANOSECONDS_PER_SECOND)
        self._ids.preset(place.own)
        span = self._tracer.start_span(
            span_name(record),
            context=to_otel_context(place.parent, place.state),
            kind=SpanKind.SERVER,
            attributes=span_attributes(record),
            start_time=began,
        )
        inner = set_span_in_context(span, Context())
        for part in child_spans(record):
            self._export_child_span(part, began, inner)
        if record.first_token is not None:
            span.add_event(
                "first_token", timestamp=began + int(record.first_token * _NANOSECONDS_PER_SECOND)
            )
        if record.status >= _MIN_ERROR_STATUS:
            span.set_status(StatusCode.ERROR, record.error or "")
        span.end(began + int(record.duration * _NANOSECONDS_PER_SECOND))

    def close(self) -> None:
        """Sends what is left. A collector that is away is not waited for long."""
        leaving = Thread(target=self._provider.shutdown, name="dovetail-otlp", daemon=True)
        leaving.start()
        leaving.join(_FLUSH_TIMEOUT_SECONDS)

    def _export_child_span(self, child: ChildSpan, began: int, context: Context) -> None:
        begin, end = (began + int(at * _NANOSECONDS_PER_SECOND) for at in (child.begin, child.end))
        span = self._tracer.start_span(
            child.name, context=context, attributes=child.attributes, start_time=begin
        )
        span.end(max(begin, end))


def _resource_attributes() -> dict[str, str]:
    """What tells this process from others. A name that the environment gives is stronger."""
    known = {"service.version": version("dovetail"), "service.instance.id": str(uuid4())}
    given = os.environ.get("OTEL_SERVICE_NAME"), os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = bool(given[0]) or "service.name=" in given[1]
    return known if named else {**known, "service.name": "dovetail"}
