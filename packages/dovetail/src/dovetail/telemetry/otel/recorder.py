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
from dovetail.telemetry.otel.attributes import Part, attributes, name, parts
from dovetail.telemetry.otel.decided import context_of, decided_provider, sampler_of_environment
from dovetail.telemetry.record import Inside, RequestEnd

_GOODBYE = 5.0  # seconds for what is still to be sent when the server stops
_NANO = 1_000_000_000
_FAULT = 500  # from this status on it is the server's: a client's mistake is no fault of the span


class Telemetry:
    """A recorder that sends spans to an address.

    Sampling, headers, certificates and queues are set by the variables that the SDK knows.
    """

    def __init__(self, address: str) -> None:
        self._sampler = sampler_of_environment()
        self._provider, self._ids = decided_provider(_about())
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(address)))
        self._tracer = self._provider.get_tracer("dovetail", version("dovetail"))

    def begin(self, parent: SpanRef | None) -> SpanRef:
        """The ids of a span for a request that begins now, in the client's trace if it has one."""
        trace, span = self._ids.new(parent.trace if parent is not None else None)
        found = self._sampler.should_sample(context_of(parent), int(trace, 16), "request")
        return SpanRef(trace, span, found.decision is Decision.RECORD_AND_SAMPLE)

    def ended(self, end: RequestEnd, inside: Inside) -> None:
        """The span of a request, and those of its parts."""
        place = current_trace()
        if place.own is None or not place.own.sampled:
            return
        began = int(end.began * _NANO)
        self._ids.next(place.own)
        span = self._tracer.start_span(
            name(end),
            context=context_of(place.parent, place.state),
            kind=SpanKind.SERVER,
            attributes=attributes(end),
            start_time=began,
        )
        inner = set_span_in_context(span, Context())
        for part in parts(end):
            self._tell_part(part, began, inner)
        if end.first_token is not None:
            span.add_event("first_token", timestamp=began + int(end.first_token * _NANO))
        if end.status >= _FAULT:
            span.set_status(StatusCode.ERROR, end.error or "")
        span.end(began + int(end.duration * _NANO))

    def close(self) -> None:
        """Sends what is left. A collector that is away is not waited for long."""
        leaving = Thread(target=self._provider.shutdown, name="dovetail-otlp", daemon=True)
        leaving.start()
        leaving.join(_GOODBYE)

    def _tell_part(self, part: Part, began: int, inner: Context) -> None:
        begin, end = (began + int(at * _NANO) for at in (part.begin, part.end))
        span = self._tracer.start_span(
            part.name, context=inner, attributes=part.attributes, start_time=begin
        )
        span.end(max(begin, end))


def _about() -> dict[str, str]:
    """What tells this process from others. A name that the environment gives is stronger."""
    known = {"service.version": version("dovetail"), "service.instance.id": str(uuid4())}
    given = os.environ.get("OTEL_SERVICE_NAME"), os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = bool(given[0]) or "service.name=" in given[1]
    return known if named else {**known, "service.name": "dovetail"}
