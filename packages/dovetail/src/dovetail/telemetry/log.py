"""Structured logs: event name and fields as logfmt or JSON. Payloads are never logged."""

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TextIO

from dovetail.telemetry.record import RequestRecord
from dovetail_model import Usage

MAX_LINE_CHARS = 1 << 14  # of all values of a line, before they are quoted
MAX_VALUE_CHARS = 1 << 13  # of one value, such as a traceback

LogFormat = Literal["logfmt", "json"]
LogValue = str | int | float | bool | None

_request_logger = logging.getLogger("dovetail.request")
_UNQUOTED_VALUE = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")
#: Control characters that JSON does not escape, but that affect terminals.
_SHORT_TYPES = frozenset({bool, int, float, type(None)})
_CONTROL_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def configure_logging(
    log_format: LogFormat = "logfmt", level: str = "info", stream: TextIO | None = None
) -> None:
    """Send all log records to one handler, as logfmt or JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else LogfmtFormatter())
    # No formatter shows these, and looking them up costs more than the rest of a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Startup and shutdown have their own events.
    logging.getLogger("uvicorn.error").setLevel(max(root.level, logging.WARNING))


def log_request(record: RequestRecord, peer: str | None = None) -> None:
    """Log a finished request. Only this event contains the address of the peer."""
    if _request_logger.isEnabledFor(logging.INFO):
        # Without a search for the caller in the stack, which no formatter shows.
        line = _request_logger.makeRecord(
            _request_logger.name,
            logging.INFO,
            __name__,
            0,
            "request_finished",
            (),
            None,
            extra={"fields": request_fields(record, peer)},
        )
        _request_logger.handle(line)


def request_fields(record: RequestRecord, peer: str | None = None) -> dict[str, LogValue]:
    """Return the fields of the `request_finished` event, without unknown ones."""
    usage = record.usage or Usage()
    has_usage = record.usage is not None
    fields: dict[str, LogValue] = {
        "id": record.id,
        "endpoint": record.endpoint,
        "status": record.status,
        "peer": peer,
        "model": record.requested_model or None,
        "stream": record.stream,
        "tenant": record.tenant or None,
        "session": record.session,
        "parent": record.parent,
        "agent": record.agent,
        "input": usage.input_tokens if has_usage else None,
        "output": usage.output_tokens if has_usage else None,
        "cached": usage.cached_tokens if has_usage else None,
        "reasoning": usage.reasoning_tokens or None,
        "ttft_ms": None if record.first_token is None else round(record.first_token * 1000, 1),
        "queue_ms": _queue_ms(record),
        "duration_ms": round(record.duration * 1000, 1),
        "finish": record.finish,
        "error": record.error,
        "reason": record.reason,
        "disconnected": record.disconnected or None,
        "migrations": record.migrations or None,
        "transport": record.transport if record.transport != "http" else None,
        "prefix": record.prefix_line,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _queue_ms(record: RequestRecord) -> float | None:
    """Return the milliseconds from decoding a request to its admission."""
    if record.decoded is None or record.admitted is None:
        return None
    return round((record.admitted - record.decoded) * 1000, 1) or None


class LogfmtFormatter(logging.Formatter):
    """Formats records as `ts=… level=… event=… name=value`, with values quoted if necessary."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _log_fields(self, record)
        return " ".join([f"{name}={_format_value(value)}" for name, value in fields.items()])


class JsonFormatter(logging.Formatter):
    """Formats records as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        return _to_json(_log_fields(self, record))


def _log_fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, LogValue]:
    line: dict[str, LogValue] = {
        "ts": f"{_format_seconds(int(record.created))}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": record.getMessage(),
    }
    fields = getattr(record, "fields", None)
    if isinstance(fields, Mapping):
        line |= fields
    if record.exc_info:
        line["traceback"] = formatter.formatException(record.exc_info)
    return _limit_length(line)


@lru_cache(maxsize=2)
def _format_seconds(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _limit_length(line: dict[str, LogValue]) -> dict[str, LogValue]:
    """Shorten long values: clients choose some of them, and tracebacks can be huge."""
    room = MAX_LINE_CHARS
    for name, value in line.items():
        if type(value) in _SHORT_TYPES:
            continue
        text = str(value)
        length = len(text)
        if length > room or length > MAX_VALUE_CHARS:
            text = _shorten(text, min(room, MAX_VALUE_CHARS))
            length = len(text)
        line[name] = text
        room = room - length if length < room else 0
    return line


def _shorten(text: str, max_chars: int) -> str:
    """Remove the middle of a long text: a traceback ends with the error."""
    half = max_chars // 2
    return (
        f"{text[:half]}...[{len(text) - 2 * half} characters omitted]...{text[len(text) - half :]}"
    )


def _format_value(value: LogValue) -> str:
    if type(value) is str:
        return value if _UNQUOTED_VALUE.fullmatch(value) else _to_json(value)
    if value is True or value is False:
        return "true" if value else "false"
    return str(value)


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).translate(_CONTROL_ESCAPES)
