"""Telemetry: request records, logs, metrics, traces and OpenTelemetry spans."""
