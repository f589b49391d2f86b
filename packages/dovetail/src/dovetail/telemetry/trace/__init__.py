"""Traces: a line for each request that is over, and what can be made of them."""

from dovetail.telemetry.trace.line import Payload, TraceLine
from dovetail.telemetry.trace.perfetto import timeline
from dovetail.telemetry.trace.reader import Trace, TraceError, read_traces
from dovetail.telemetry.trace.summary import SessionSummary, summarize
from dovetail.telemetry.trace.trace_writer import TraceWriter

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
