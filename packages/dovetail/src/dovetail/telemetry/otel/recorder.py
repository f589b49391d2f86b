"""Send a span per finished request to an OpenTelemetry collector.

The ids of a span are created when its request begins, so that engines can use it as parent. The
span itself is created at the end. A thread of the SDK sends it, so recording does not block.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from threading import Thread
from uuid import uuid4

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, Sampler
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from dovetail.net.trace_context import SpanRef, current_trace
from dovetail.telemetry.record import RequestContents, RequestRecord

AttributeValue = str | int | float | bool | Sequence[str]

_CHAT_OPERATION = "chat"
#: Operation names of the generating endpoints, from the semantic conventions.
OPERATIONS = {
    "messages": _CHAT_OPERATION,
    "responses": _CHAT_OPERATION,
    "chat_completions": _CHAT_OPERATION,
    "completions": "text_completion",
}
MAX_CHILD_SPANS = 128  # per request: the number of calls is unbounded


@dataclass(frozen=True)
class ChildSpan:
    """A part of a request, in seconds from its start."""

    name: str
    begin: float
    end: float
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


def span_name(record: RequestRecord) -> str:
    """Return the name of a span: operation and model."""
    operation = OPERATIONS.get(record.endpoint)
    if operation is None:
        return record.endpoint
    return f"{operation} {record.model}".strip()


def span_attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    """Return the attributes of a span, without unknown ones."""
    attributes: dict[str, AttributeValue | None] = {
        "dovetail.request.id": record.id,
        "dovetail.endpoint": record.endpoint,
        "dovetail.transport": record.transport,
        "dovetail.tenant": record.tenant or None,
        "http.response.status_code": record.status,
        "error.type": record.error,
        **_gen_ai_attributes(record),
        **_prefix_attributes(record),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _gen_ai_attributes(record: RequestRecord) -> dict[str, AttributeValue | None]:
    if record.endpoint not in OPERATIONS:
        return {}
    usage = record.usage
    return {
        "gen_ai.operation.name": OPERATIONS[record.endpoint],
        "gen_ai.provider.name": "dovetail",
        "gen_ai.request.model": record.requested_model or None,
        "gen_ai.response.model": record.model or None,
        "gen_ai.request.stream": record.stream,
        "gen_ai.conversation.id": record.session,
        "gen_ai.agent.id": record.agent,
        "gen_ai.usage.input_tokens": usage.input_tokens if usage else None,
        "gen_ai.usage.output_tokens": usage.output_tokens if usage else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage else None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens if usage else None,
        "gen_ai.response.finish_reasons": [record.finish] if record.finish else None,
        "gen_ai.response.time_to_first_chunk": record.first_token,
    }


def _prefix_attributes(record: RequestRecord) -> dict[str, AttributeValue | None]:
    """Return the attributes of prefix and routing."""
    prefix = record.prefix
    return {
        "dovetail.parent": record.parent,
        "dovetail.prefix.common": prefix.common if prefix else None,
        "dovetail.prefix.lost": prefix.lost if prefix else None,
        "dovetail.prefix.reason": prefix.reason if prefix else None,
        "dovetail.reprefilled": record.reprefilled,
        "dovetail.replica": record.replica,
        "dovetail.migrations": record.migrations or None,
        "dovetail.results": list(record.results) or None,
        "dovetail.diagnostics": [*record.diagnostics] or None,
        "dovetail.disconnected": record.disconnected or None,
    }


def child_spans(record: RequestRecord) -> Iterator[ChildSpan]:
    """Yield the parts of a request: stages, reasoning spans and tool calls."""
    spans = list(_stage_spans(record))
    spans += [ChildSpan("reasoning", span.begin, span.end) for span in record.reasoning_spans]
    for call in record.calls:
        optional = {"gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id}
        attributes = {name: value for name, value in optional.items() if value}
        spans.append(ChildSpan("call", call.begin, record.call_end(call), attributes))
    yield from spans[:MAX_CHILD_SPANS]


def _stage_spans(record: RequestRecord) -> Iterator[ChildSpan]:
    """Yield the stages that were reached."""
    for name, begin, end in record.stages():
        yield ChildSpan(name, begin, end)
    if record.first_token is not None and record.last_event is not None:
        yield ChildSpan("generate", record.first_token, record.last_event)


class PresetIdGenerator(IdGenerator):
    """An id generator with preset ids for the next span, and random ids otherwise."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self._preset: SpanRef | None = None

    def new_ids(self, trace: str | None) -> tuple[str, str]:
        """Create the ids of a future span: trace id, unless given, and span id."""
        trace_id = trace or f"{self._random.generate_trace_id():032x}"
        return trace_id, f"{self._random.generate_span_id():016x}"

    def preset(self, ref: SpanRef) -> None:
        """Use these ids for the next span."""
        self._preset = ref

    def generate_trace_id(self) -> int:
        """Return a trace id. The SDK calls this first, and only for spans without a parent."""
        if self._preset is None:
            return self._random.generate_trace_id()
        return int(self._preset.trace, 16)

    def generate_span_id(self) -> int:
        """Return a span id. The SDK calls this once per span."""
        ref, self._preset = self._preset, None
        return self._random.generate_span_id() if ref is None else int(ref.span, 16)


def make_tracer_provider(resource: Mapping[str, str]) -> tuple[TracerProvider, PresetIdGenerator]:
    """Create a tracer provider and its id generator."""
    ids = PresetIdGenerator()
    provider = TracerProvider(
        sampler=ALWAYS_ON,
        resource=Resource.create(dict(resource)),
        shutdown_on_exit=False,
        id_generator=ids,
    )
    return provider, ids


def sampler_from_environment() -> Sampler:
    """Return the sampler of OTEL_TRACES_SAMPLER, by default `parentbased_always_on`."""
    return TracerProvider(shutdown_on_exit=False).sampler


def to_otel_context(ref: SpanRef | None, state: str = "") -> Context:
    """Return a context in which the span of the client is current."""
    if ref is None:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if ref.sampled else TraceFlags.DEFAULT)
    span_context = SpanContext(
        int(ref.trace, 16),
        int(ref.span, 16),
        is_remote=True,
        trace_flags=flags,
        trace_state=TraceState.from_header([state] if state else []),
    )
    return set_span_in_context(NonRecordingSpan(span_context), Context())


_FLUSH_TIMEOUT_SECONDS = 5.0  # for pending spans at shutdown
_NANOSECONDS_PER_SECOND = 1_000_000_000
_MIN_ERROR_STATUS = 500  # client errors do not mark the span as failed


class OtelRecorder:
    """A request recorder that sends spans to a collector.

    The environment variables of the SDK set sampling, headers, certificates and queues.
    """

    def __init__(self, address: str) -> None:
        self._sampler = sampler_from_environment()
        self._provider, self._ids = make_tracer_provider(_resource_attributes())
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(address)))
        self._tracer = self._provider.get_tracer("dovetail", version("dovetail"))

    def start_span(self, parent: SpanRef | None) -> SpanRef:
        """Create the span ids of a new request, in the trace of the client if it has one."""
        trace, span = self._ids.new_ids(parent.trace if parent is not None else None)
        result = self._sampler.should_sample(to_otel_context(parent), int(trace, 16), "request")
        return SpanRef(trace, span, result.decision is Decision.RECORD_AND_SAMPLE)

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None:
        """Send the span of a request and its child spans."""
        trace = current_trace()
        if trace.own is None or not trace.own.sampled:
            return
        began = int(record.began * _NANOSECONDS_PER_SECOND)
        self._ids.preset(trace.own)
        span = self._tracer.start_span(
            span_name(record),
            context=to_otel_context(trace.parent, trace.state),
            kind=SpanKind.SERVER,
            attributes=span_attributes(record),
            start_time=began,
        )
        context = set_span_in_context(span, Context())
        for child in child_spans(record):
            self._export_child_span(child, began, context)
        if record.first_token is not None:
            span.add_event(
                "first_token", timestamp=began + int(record.first_token * _NANOSECONDS_PER_SECOND)
            )
        if record.status >= _MIN_ERROR_STATUS:
            span.set_status(StatusCode.ERROR, record.error or "")
        span.end(began + int(record.duration * _NANOSECONDS_PER_SECOND))

    def close(self) -> None:
        """Send pending spans, within the timeout."""
        thread = Thread(target=self._provider.shutdown, name="dovetail-otlp", daemon=True)
        thread.start()
        thread.join(_FLUSH_TIMEOUT_SECONDS)

    def _export_child_span(self, child: ChildSpan, began: int, context: Context) -> None:
        begin, end = (began + int(at * _NANOSECONDS_PER_SECOND) for at in (child.begin, child.end))
        span = self._tracer.start_span(
            child.name, context=context, attributes=child.attributes, start_time=begin
        )
        span.end(max(begin, end))


def _resource_attributes() -> dict[str, str]:
    """Return the attributes of this process. A service name in the environment has precedence."""
    attributes = {"service.version": version("dovetail"), "service.instance.id": str(uuid4())}
    environment = (
        os.environ.get("OTEL_SERVICE_NAME"),
        os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""),
    )
    has_name = bool(environment[0]) or "service.name=" in environment[1]
    return attributes if has_name else {**attributes, "service.name": "dovetail"}
