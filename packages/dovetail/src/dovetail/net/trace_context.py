"""Which trace a request belongs to, by the W3C's headers, and what its own requests carry on.

Held beside the task that answers, so that engines need not be told through every hand.
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
    """A span: the trace that it is in, its own id, and whether anybody records it."""

    trace: str
    span: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace}-{self.span}-{int(self.sampled):02x}"


@dataclass(frozen=True)
class TraceContext:
    """A request's place: the client's span, our own where spans are made, the client's state."""

    parent: SpanRef | None
    own: SpanRef | None
    state: str = ""


StartSpan = Callable[[SpanRef | None], SpanRef]


@runtime_checkable
class SpanFactory(Protocol):
    """Who makes spans for requests."""

    def start_span(self, parent: SpanRef | None) -> SpanRef: ...


_NO_TRACE = TraceContext(None, None)
_current: ContextVar[TraceContext] = ContextVar("traced", default=_NO_TRACE)


def parse_traceparent(header: str | None) -> SpanRef | None:
    """The span that a header names. None for one that is not sound, as the W3C wants it."""
    found = _TRACEPARENT.fullmatch(header) if header is not None else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    known = version != "ff" and (version != "00" or more is None)
    if not known or set(trace) == {"0"} or set(span) == {"0"}:
        return None
    return SpanRef(trace, span, bool(int(flags, 16) & _SAMPLED_FLAG))


@contextmanager
def trace_scope(headers: Mapping[str, str], start_span: StartSpan | None = None) -> Iterator[None]:
    """What runs inside belongs to the trace that the headers name; `begin` makes a span in it."""
    parent = parse_traceparent(headers.get("traceparent"))
    state = headers.get("tracestate", "") if parent is not None else ""
    own = start_span(parent) if start_span is not None else None
    token = _current.set(TraceContext(parent, own, state if _TRACESTATE.fullmatch(state) else ""))
    try:
        yield
    finally:
        _current.reset(token)


def current_trace() -> TraceContext:
    """The place of the request that is being answered here."""
    return _current.get()


def propagation_headers() -> dict[str, str]:
    """Headers for what is asked on the way: our span as the parent, else the client's own."""
    place = _current.get()
    last = place.own or place.parent
    if last is None:
        return {}
    return {"traceparent": str(last)} | ({"tracestate": place.state} if place.state else {})
