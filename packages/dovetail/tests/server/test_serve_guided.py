"""The constraints that a server sends to its engine, seen from the engine's side."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from collecting_sink import run_and_collect
from server_process import qwen_folder

from dovetail.engines.engine import Constraint
from dovetail.engines.scripted import ScriptedEngine
from dovetail.routing.pool import ReplicaPool
from dovetail.server.build import build_service
from dovetail.settings.config import Config
from dovetail_model import Finish
from dovetail_protocols import CHAT

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "other", "parameters": SCHEMA}}
FORM = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "look_up"}}


@pytest.mark.parametrize(
    ("demand", "inside", "outside"),
    [
        ({}, None, ""),
        ({"tools": [TOOL]}, None, ""),
        ({"tools": [TOOL], "tool_choice": "none"}, "root", "look_up"),  # no call may start
        ({"tools": [TOOL, OTHER], "tool_choice": "required"}, "look_up", "nothing of this"),
        ({"tools": [TOOL, OTHER], "tool_choice": NAMED}, "look_up", "other"),
        ({"response_format": FORM}, "city", "look_up"),
    ],
)
def test_constraint_is_recorded(
    tmp_path: Path, demand: dict[str, Any], inside: str | None, outside: str
) -> None:
    found = asyncio.run(_requested_constraint(tmp_path, demand))
    if inside is None:
        assert found is None
        return
    assert found is not None
    assert found.syntax == "gbnf"
    assert inside in found.text
    assert outside not in found.text


async def _requested_constraint(folder: Path, demand: dict[str, Any]) -> Constraint | None:
    (folder / "script.txt").write_text("Hello.")
    config = Config(
        model=str(qwen_folder(folder / "model")),
        engine="scripted",
        script=folder / "script.txt",
        served_model_name=("m",),
        data_dir=folder / "home",
    )
    service = build_service(config)
    await service.start()
    try:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **demand}
        request = CHAT.decode(json.dumps(body).encode(), {})
        served = service.find("m")
        events = await run_and_collect(served, request, "call_1")
        assert isinstance(events[-1], Finish)
        assert isinstance(served.engine, ReplicaPool)
        engine = served.engine.replicas[0].engine
        assert isinstance(engine, ScriptedEngine)
        return engine.requests[-1].constraint
    finally:
        await service.stop()
