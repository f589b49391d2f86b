"""Structured logs: an event's name and fields, as logfmt or JSON. Payloads are never logged."""

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Literal, TextIO

from dovetail.telemetry.record import RequestEnd
from dovetail_model import Usage

Form = Literal["logfmt", "json"]
Value = str | int | float | bool | None

_requests = logging.getLogger("dovetail.request")
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")
#: What would steer a terminal that shows a line; JSON has the other control characters escaped.
_STEERING = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def configure(form: Form = "logfmt", level: str = "info", stream: TextIO | None = None) -> None:
    """Sends everything that is logged to one place, in one form."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Logfmt())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # What it says of starts and ends is said in events of our own.
    logging.getLogger("uvicorn.error").setLevel(max(root.level, logging.WARNING))


def log_request(end: RequestEnd, peer: str | None = None) -> None:
    """One line for a request that is over. Where it came from is told nowhere else."""
    if _requests.isEnabledFor(logging.INFO):
        _requests.info("request", extra={"fields": request_fields(end, peer)})


def request_fields(end: RequestEnd, peer: str | None = None) -> dict[str, Value]:
    """The fields of a request's line. What is not known is left out."""
    usage = end.usage or Usage()
    counted = end.usage is not None
    fields: dict[str, Value] = {
        "id": end.id,
        "endpoint": end.endpoint,
        "status": end.status,
        "peer": peer,
        "model": end.asked or None,
        "stream": end.stream,
        "tenant": end.tenant or None,
        "session": end.session,
        "parent": end.parent,
        "agent": end.agent,
        "input": usage.input_tokens if counted else None,
        "output": usage.output_tokens if counted else None,
        "cached": usage.cached_tokens if counted else None,
        "reasoning": usage.reasoning_tokens or None,
        "ttft_ms": None if end.first_token is None else round(end.first_token * 1000, 1),
        "queue_ms": _waited(end),
        "duration_ms": round(end.duration * 1000, 1),
        "finish": end.finish,
        "error": end.error,
        "reason": end.reason,
        "disconnected": end.disconnected or None,
        "migrations": end.migrations or None,
        "transport": end.transport if end.transport != "http" else None,
        "prefix": end.prefix_line,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _waited(end: RequestEnd) -> float | None:
    """Milliseconds from the request being understood to there being room for it."""
    if end.decoded is None or end.admitted is None:
        return None
    return round((end.admitted - end.decoded) * 1000, 1) or None


class Logfmt(logging.Formatter):
    """`ts=… level=… event=… name=value`, values quoted where they need it."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_written(value)}" for name, value in _line(self, record).items())


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return _json(_line(self, record))


def _line(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Value]:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    line: dict[str, Value] = {
        "ts": f"{seconds}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": record.getMessage(),
    }
    fields = getattr(record, "fields", None)
    if isinstance(fields, Mapping):
        line |= fields
    if record.exc_info:
        line["traceback"] = formatter.formatException(record.exc_info)
    return line


def _written(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else _json(text)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).translate(_STEERING)
