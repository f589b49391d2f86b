"""A plan as lines for a shell, so that people can copy what would be set."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from dovetail.launch.plan import Plan

#: Where a user keeps the key of a server that asks for one.
SHOWN_KEY = "DOVETAIL_API_KEY"
_HOT = re.compile(r"[\\$`]")


def shell_lines(plan: Plan, key: str | None) -> Iterator[str]:
    """The lines. A key is shown as a reference to a variable, never in clear."""
    if plan.unset:
        yield f"unset {' '.join(plan.unset)}"
    for name, value in plan.environment.items():
        shown = f'"${SHOWN_KEY}"' if key and value == key else shlex.quote(value)
        yield f"export {name}={shown}"
    for path, text in plan.files.items():
        yield from _file(path, text, key)
    yield " ".join(shlex.quote(part) for part in plan.command)


def _file(path: Path, text: str, key: str | None) -> Iterator[str]:
    end = "EOF"
    while end in text.splitlines():
        end += "_"
    quoted = f"'{end}'"
    spelled = json.dumps(key or "")[1:-1]  # files that hold a key are JSON
    if spelled and spelled in text:
        # The shell puts the key in: it must leave the rest alone.
        parts = [_HOT.sub(r"\\\g<0>", part) for part in text.split(spelled)]
        text = f"${{{SHOWN_KEY}}}".join(parts)
        quoted = end
    folder, file = shlex.quote(str(path.parent)), shlex.quote(str(path))
    yield f"(umask 077; mkdir -p {folder}; cat > {file}) <<{quoted}"
    yield text.removesuffix("\n")
    yield end
