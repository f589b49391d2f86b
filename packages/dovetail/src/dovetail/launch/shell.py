"""A plan as lines for a shell, so that people can copy what would be set."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from dovetail.launch.plan import LaunchPlan

#: Where a user keeps the key of a server that asks for one.
SHELL_KEY_VARIABLE = "DOVETAIL_API_KEY"
_SHELL_SPECIAL = re.compile(r"[\\$`]")


def to_shell_lines(plan: LaunchPlan, key: str | None) -> Iterator[str]:
    """The lines. A key is shown as a reference to a variable, never in clear."""
    if plan.unset_variables:
        yield f"unset {' '.join(plan.unset_variables)}"
    for name, value in plan.environment.items():
        shown = f'"${SHELL_KEY_VARIABLE}"' if key and value == key else shlex.quote(value)
        yield f"export {name}={shown}"
    for path, text in plan.files.items():
        yield from _to_heredoc(path, text, key)
    yield " ".join(shlex.quote(part) for part in plan.command)


def _to_heredoc(path: Path, text: str, key: str | None) -> Iterator[str]:
    end = "EOF"
    while end in text.splitlines():
        end += "_"
    quoted = f"'{end}'"
    spelled = json.dumps(key or "")[1:-1]  # files that hold a key are JSON
    if spelled and spelled in text:
        # The shell puts the key in: it must leave the rest alone.
        parts = [_SHELL_SPECIAL.sub(r"\\\g<0>", part) for part in text.split(spelled)]
        text = f"${{{SHELL_KEY_VARIABLE}}}".join(parts)
        quoted = end
    folder, file = shlex.quote(str(path.parent)), shlex.quote(str(path))
    yield f"(umask 077; mkdir -p {folder}; cat > {file}) <<{quoted}"
    yield text.removesuffix("\n")
    yield end
