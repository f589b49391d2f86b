"""Log lines have a maximum length, whatever a client sends and however a request fails."""

import json
import logging

import pytest

from dovetail.telemetry.log import MAX_LINE_CHARS, JsonFormatter, LogfmtFormatter

ROOM = 2_000  # names of fields, notes on omitted text, escapes of a traceback


def _record(fields: dict[str, object], error: BaseException | None = None) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "request_failed", (), exc_info)
    record.fields = fields
    return record


@pytest.mark.parametrize("formatter", [LogfmtFormatter(), JsonFormatter()])
def test_long_values_are_shortened(formatter: logging.Formatter) -> None:
    fields: dict[str, object] = {"model": "m" * 10**6, "session": "s" * 10**6, "status": 400}
    line = formatter.format(_record(fields))
    assert len(line) < MAX_LINE_CHARS + ROOM
    assert "characters omitted" in line
    assert "400" in line


def test_error_at_the_end_of_a_long_traceback_is_logged() -> None:
    def fail(depth: int) -> None:
        fail(depth - 1)

    try:
        fail(10**6)
    except RecursionError as error:
        caught = RuntimeError("x" * 300_000 + " the end")
        caught.__cause__ = error
        line = JsonFormatter().format(_record({}, caught))
    assert len(line) < MAX_LINE_CHARS + ROOM
    text = json.loads(line)["traceback"]
    assert text.startswith("Traceback")
    assert text.endswith("the end")


def test_short_lines_are_unchanged() -> None:
    line = json.loads(JsonFormatter().format(_record({"id": "a", "none": None, "rate": 0.5})))
    assert (line["event"], line["id"], line["none"], line["rate"]) == (
        "request_failed",
        "a",
        None,
        0.5,
    )
