"""`dovetail config`: print the effective settings and the source of each."""

import json
import sys

from rich.console import Console
from rich.table import Table

from dovetail.cli.flags import with_settings
from dovetail.settings.sources import LoadedConfig, dump_config

_MAX_LINE_CHARS = 10_000  # line width when the output is not a terminal


@with_settings
def config(settings: LoadedConfig) -> None:
    """Print the effective settings and the source of each.

    The source is the default, the file, the environment or a flag. Accepts the same flags as
    `dovetail serve`. Keys are masked.
    """
    table = Table(box=None, header_style="bold")
    for title in ("setting", "value", "from"):
        table.add_column(title, overflow="fold")
    for name, value in dump_config(settings).items():
        origin = settings.origins.get(name, "")
        table.add_row(name, json.dumps(value, ensure_ascii=False), origin)
    Console(width=None if sys.stdout.isatty() else _MAX_LINE_CHARS).print(table)
