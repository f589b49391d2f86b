"""Span names and attributes of a request, by the conventions for generative AI.

Names that begin with `dovetail.` are our own, where the conventions have none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.telemetry.record import RequestRecord

AttributeValue = str | int | float | bool | Sequence[str]

_CHAT_OPERATION = "chat"
#: Operation names of the generating endpoints, by the conventions.
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
    """The name of the span: operation and model."""
    operation = OPERATIONS.get(record.endpoint)
    if operation is None:
        return record.endpoint
    return f"{operation} {record.model}".strip()


def span_attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    """The attributes of the span, without unknown ones."""
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
    """Attributes of the prompt's prefix and of the routing."""
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
    """The parts of a request: stages, reasoning spans and tool calls."""
    spans = list(_stage_spans(record))
    spans += [ChildSpan("reasoning", span.begin, span.end) for span in record.reasoning_spans]
    for call in record.calls:
        optional = {"gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id}
        attributes = {name: value for name, value in optional.items() if value}
        spans.append(ChildSpan("call", call.begin, record.call_end(call), attributes))
    yield from spans[:MAX_CHILD_SPANS]


def _stage_spans(record: RequestRecord) -> Iterator[ChildSpan]:
    """The stages that were reached."""
    for name, begin, end in record.stages():
        yield ChildSpan(name, begin, end)
    if record.first_token is not None and record.last_event is not None:
        yield ChildSpan("generate", record.first_token, record.last_event)
