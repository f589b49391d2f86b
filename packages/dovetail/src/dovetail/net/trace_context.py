"""W3C trace context: the trace that a request belongs to, and the headers that propagate it.

A context variable holds it, so that engines need no parameter for it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")
_SAMPLED_FLAG = 1


@dataclass(frozen=True)
class SpanRef:
    """A reference to a span: id of its trace, its own id, and whether it is sampled."""

    trace: str
    span: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace}-{self.span}-{int(self.sampled):02x}"


@dataclass(frozen=True)
class TraceContext:
    """Position of a request in a trace.

    parent: Span of the client.
    own: Span of this server, if it creates spans.
    state: `tracestate` of the client.
    """

    parent: SpanRef | None
    own: SpanRef | None
    state: str = ""


StartSpan = Callable[[SpanRef | None], SpanRef]


@runtime_checkable
class SpanFactory(Protocol):
    """Creates spans for requests."""

    def start_span(self, parent: SpanRef | None) -> SpanRef: ...


_NO_TRACE = TraceContext(None, None)
_current: ContextVar[TraceContext] = ContextVar("trace_context", default=_NO_TRACE)


def parse_traceparent(header: str | None) -> SpanRef | None:
    """Parse a `traceparent` header. Returns None if it is invalid, as the W3C specifies."""
    match = _TRACEPARENT.fullmatch(header) if header is not None else None
    if match is None:
        return None
    version, trace, span, flags, rest = match.groups()
    is_valid = version != "ff" and (version != "00" or rest is None)
    if not is_valid or set(trace) == {"0"} or set(span) == {"0"}:
        return None
    return SpanRef(trace, span, bool(int(flags, 16) & _SAMPLED_FLAG))


@contextmanager
def trace_scope(headers: Mapping[str, str], start_span: StartSpan | None = None) -> Iterator[None]:
    """Run the block in the trace that the headers name; `start_span` creates a span in it."""
    parent = parse_traceparent(headers.get("traceparent"))
    state = headers.get("tracestate", "") if parent is not None else ""
    own = start_span(parent) if start_span is not None else None
    token = _current.set(TraceContext(parent, own, state if _TRACESTATE.fullmatch(state) else ""))
    try:
        yield
    finally:
        _current.reset(token)


def current_trace() -> TraceContext:
    """Return the trace context of the current request."""
    return _current.get()


def propagation_headers() -> dict[str, str]:
    """Return headers for outgoing requests. The parent is our own span, else the client's."""
    context = _current.get()
    span = context.own or context.parent
    if span is None:
        return {}
    return {"traceparent": str(span)} | ({"tracestate": context.state} if context.state else {})
