"""Which trace a request belongs to, by the W3C's headers, and what its own requests carry on.

Held beside the task that answers, so that engines need not be told through every hand.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[\x20-\x7e]{1,512}")
_SAMPLED = 1


@dataclass(frozen=True)
class SpanRef:
    """A span: the trace that it is in, its own id, and whether anybody records it."""

    trace: str
    span: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace}-{self.span}-{int(self.sampled):02x}"


@dataclass(frozen=True)
class Traced:
    """A request's place: the client's span, our own where spans are made, the client's state."""

    parent: SpanRef | None
    own: SpanRef | None
    state: str = ""


Begin = Callable[[SpanRef | None], SpanRef]


@runtime_checkable
class Spans(Protocol):
    """Who makes spans for requests."""

    def begin(self, parent: SpanRef | None) -> SpanRef: ...


_NOWHERE = Traced(None, None)
_current: ContextVar[Traced] = ContextVar("traced", default=_NOWHERE)


def read_traceparent(given: str | None) -> SpanRef | None:
    """The span that a header names. None for one that is not sound, as the W3C wants it."""
    found = _HEADER.fullmatch(given) if given is not None else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    known = version != "ff" and (version != "00" or more is None)
    if not known or set(trace) == {"0"} or set(span) == {"0"}:
        return None
    return SpanRef(trace, span, bool(int(flags, 16) & _SAMPLED))


@contextmanager
def traced(headers: Mapping[str, str], begin: Begin | None = None) -> Iterator[None]:
    """What runs inside belongs to the trace that the headers name; `begin` makes a span in it."""
    parent = read_traceparent(headers.get("traceparent"))
    state = headers.get("tracestate", "") if parent is not None else ""
    own = begin(parent) if begin is not None else None
    token = _current.set(Traced(parent, own, state if _STATE.fullmatch(state) else ""))
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Traced:
    """The place of the request that is being answered here."""
    return _current.get()


def handed_on() -> dict[str, str]:
    """Headers for what is asked on the way: our span as the parent, else the client's own."""
    place = _current.get()
    last = place.own or place.parent
    if last is None:
        return {}
    return {"traceparent": str(last)} | ({"tracestate": place.state} if place.state else {})
