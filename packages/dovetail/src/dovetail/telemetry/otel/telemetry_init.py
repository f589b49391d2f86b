"""Spans for OpenTelemetry: one for each request, none of its text."""

from dovetail.telemetry.otel import TelemetryError, open_telemetry

__all__ = ["TelemetryError", "open_telemetry"]
