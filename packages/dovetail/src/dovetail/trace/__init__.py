"""Traces: a line for each request that is over, and what can be made of them."""

from dovetail.trace.line import Payload, TraceLine
from dovetail.trace.perfetto import timeline
from dovetail.trace.reading import Trace, TraceError, read_traces
from dovetail.trace.summary import SessionSummary, summarize
from dovetail.trace.writer import TraceWriter

__all__ = [
    "Payload",
    "SessionSummary",
    "Trace",
    "TraceError",
    "TraceLine",
    "TraceWriter",
    "read_traces",
    "summarize",
    "timeline",
]
