"""A request as spans say it: names and attributes, by the conventions for generative AI.

Names that begin with `dovetail.` are our own, where the conventions have none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.telemetry.record import RequestEnd

Value = str | int | float | bool | Sequence[str]

_CHAT = "chat"
#: What the endpoints that generate do, as the conventions call it.
OPERATIONS = {
    "messages": _CHAT,
    "responses": _CHAT,
    "chat_completions": _CHAT,
    "completions": "text_completion",
}
MOST_PARTS = 128  # of one request: a model may write calls without end


@dataclass(frozen=True)
class Part:
    """A stretch of a request, in seconds from its beginning."""

    name: str
    begin: float
    end: float
    attributes: Mapping[str, Value] = field(default_factory=dict)


def name(end: RequestEnd) -> str:
    """The span's name: what was done, with which model."""
    operation = OPERATIONS.get(end.endpoint)
    if operation is None:
        return end.endpoint
    return f"{operation} {end.model}".strip()


def attributes(end: RequestEnd) -> dict[str, Value]:
    """What is known of the request; what is not is left out."""
    known: dict[str, Value | None] = {
        "dovetail.request.id": end.id,
        "dovetail.endpoint": end.endpoint,
        "dovetail.transport": end.transport,
        "dovetail.tenant": end.tenant or None,
        "http.response.status_code": end.status,
        "error.type": end.error,
        **_generated(end),
        **_exactness(end),
    }
    return {name: value for name, value in known.items() if value is not None}


def _generated(end: RequestEnd) -> dict[str, Value | None]:
    if end.endpoint not in OPERATIONS:
        return {}
    usage = end.usage
    return {
        "gen_ai.operation.name": OPERATIONS[end.endpoint],
        "gen_ai.provider.name": "dovetail",
        "gen_ai.request.model": end.asked or None,
        "gen_ai.response.model": end.model or None,
        "gen_ai.request.stream": end.stream,
        "gen_ai.conversation.id": end.session,
        "gen_ai.agent.id": end.agent,
        "gen_ai.usage.input_tokens": usage.input_tokens if usage else None,
        "gen_ai.usage.output_tokens": usage.output_tokens if usage else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage else None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens if usage else None,
        "gen_ai.response.finish_reasons": [end.finish] if end.finish else None,
        "gen_ai.response.time_to_first_chunk": end.first_token,
    }


def _exactness(end: RequestEnd) -> dict[str, Value | None]:
    """What became of the prompt and of the answer on their way."""
    prefix = end.prefix
    return {
        "dovetail.parent": end.parent,
        "dovetail.prefix.common": prefix.common if prefix else None,
        "dovetail.prefix.lost": prefix.lost if prefix else None,
        "dovetail.prefix.reason": prefix.reason if prefix else None,
        "dovetail.reprefilled": end.reprefilled,
        "dovetail.replica": end.replica,
        "dovetail.migrations": end.migrations or None,
        "dovetail.results": list(end.results) or None,
        "dovetail.diagnostics": [*end.diagnostics] or None,
        "dovetail.disconnected": end.disconnected or None,
    }


def parts(end: RequestEnd) -> Iterator[Part]:
    """What a request was made of, one after the other and side by side."""
    made = list(_course(end))
    made += [Part("reasoning", thought.begin, thought.end) for thought in end.thoughts]
    for call in end.calls:
        known = {"gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id}
        told = {name: value for name, value in known.items() if value}
        made.append(Part("call", call.begin, end.end_of(call), told))
    yield from made[:MOST_PARTS]


def _course(end: RequestEnd) -> Iterator[Part]:
    """From one milestone to the next, as far as it came."""
    for name, begin, over in end.stages():
        yield Part(name, begin, over)
    if end.first_token is not None and end.said is not None:
        yield Part("generate", end.first_token, end.said)
