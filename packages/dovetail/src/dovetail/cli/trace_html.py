"""`dovetail trace html`: write the web UI's view of a recorded session as one file."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.errors import fail
from dovetail.telemetry.trace.reader import Trace
from dovetail.ui.page import build_standalone_page
from dovetail.ui.session_view import build_trace_view

HtmlOutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="File to write instead of stdout.")
]


def write_html(trace: Trace, session: str | None, output: Path | None) -> None:
    """Write the requests of a trace as a page that needs no server."""
    if all(line.decoded is None for line in trace.lines):
        fail("trace", "the trace files contain no request to a model")
    page = build_standalone_page(build_trace_view(trace, session))
    if output is None:
        sys.stdout.buffer.write(page)
        return
    try:
        with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(page)
    except OSError as error:
        fail("trace", f"cannot write {output}: {error.strerror}")
