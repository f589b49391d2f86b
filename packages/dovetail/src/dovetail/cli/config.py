"""`dovetail config`: the settings as they would be, and where each comes from."""

import json

from rich.console import Console
from rich.table import Table

from dovetail.cli.settings import with_settings
from dovetail.config_sources import Settings, dump


@with_settings
def config(settings: Settings) -> None:
    """Print every setting with its value and where it comes from: default, file, environment, flag.

    Takes the same flags as `dovetail serve`. Keys are not shown.
    """
    table = Table("setting", "value", "from", box=None, header_style="bold")
    for name, value in dump(settings).items():
        origin = settings.origins.get(name, "")
        table.add_row(name, json.dumps(value, ensure_ascii=False), origin)
    Console().print(table)
