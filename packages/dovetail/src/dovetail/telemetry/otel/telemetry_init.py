"""Spans for OpenTelemetry: one for each request, none of its text."""
