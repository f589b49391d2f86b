"""Small task folders for `dovetail compare`, and a scripted model that solves them."""

import json
from pathlib import Path
from typing import Any

from dovetail.launch.scripted_server import prepare_scripted_server

CHECK = """\
import pathlib, sys
text = pathlib.Path("result.txt").read_text() if pathlib.Path("result.txt").exists() else "missing"
print("solved" if text == "done\\n" else f"result.txt is {text!r}")
sys.exit(0 if text == "done\\n" else 1)
"""


def write_task(folder: Path, name: str, *, check: str = CHECK, **more: Any) -> Path:
    """Write a task that is solved if `result.txt` contains `done`."""
    task = folder / name
    (task / "workspace").mkdir(parents=True)
    (task / "workspace" / "input.txt").write_text("some input\n")
    fields = {"title": f"Task {name}", "instructions": f"Do {name}: write result.txt.", **more}
    lines = (f"{key} = {json.dumps(value)}" for key, value in fields.items())
    (task / "task.toml").write_text("\n".join(lines))
    (task / "check.py").write_text(check)
    return task


def call_text(command: str) -> str:
    """Return a call of `run_command`, as the scripted model writes it."""
    return (
        "<think>\nI act.\n</think>\n\n<tool_call>\n<function=run_command>\n<parameter=command>\n"
        f"{command}\n</parameter>\n</function>\n</tool_call>"
    )


def write_profile(folder: Path, turns: list[dict[str, Any]]) -> Path:
    """Write a profile with a scripted model whose sessions have these turns."""
    folder.mkdir()
    server = prepare_scripted_server(folder)
    script = folder / "turns.yaml"
    script.write_text(json.dumps({"turns": turns}))
    arguments = dict(zip(server.arguments[1::2], server.arguments[2::2], strict=True))
    settings = {
        "model": server.arguments[0],
        "engine": "scripted",
        "script": str(script),
        "tool_call_parser": arguments["--tool-call-parser"],
        "reasoning_parser": arguments["--reasoning-parser"],
        "alias": "scripted-model",
    }
    path = folder / "profile.toml"
    path.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items()))
    return path


SOLVING_TURNS = [
    {"text": call_text("cat input.txt")},
    {"text": call_text("echo done > result.txt")},
    {"text": "It is done."},
]
