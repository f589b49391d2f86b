"""The settings of recovery, from the flags to a recovered turn that survives a restart."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from collecting_sink import run_and_collect
from server_process import qwen_folder

from dovetail.engines.scripted import ScriptedEngine
from dovetail.pipeline.registry import ModelRegistry
from dovetail.routing.pool import ReplicaPool
from dovetail.server.build import build_service
from dovetail.settings.config import Config
from dovetail_model import Fold, Message, ReasoningBlock, Request, TextBlock
from dovetail_protocols import CHAT

SCRIPT = """\
- text: "<think>I wonder"
- text: "It is so."
- text: "\\n"
- text: "As before."
- text: "Let me look again."
"""


def _config(folder: Path, **more: Any) -> Config:
    model = folder / "model"
    if not model.exists():
        (folder / "script.yaml").write_text(SCRIPT)
        qwen_folder(model)
    return Config(
        model=str(model),
        engine="scripted",
        script=folder / "script.yaml",
        served_model_name=("m",),
        data_dir=folder / "home",
        recover=("reasoning", "empty", "loop"),
        **more,
    )


def _request(*messages: dict[str, Any]) -> Request:
    body = {"model": "m", "messages": list(messages)}
    return CHAT.decode(json.dumps(body).encode(), {"x-session-affinity": "s"})


async def _execute(service: ModelRegistry, *messages: dict[str, Any]) -> Message:
    fold = Fold()
    for event in await run_and_collect(service.find("m"), _request(*messages)):
        fold.add(event)
    return fold.message()


def _prompts(service: ModelRegistry) -> list[list[int]]:
    pool = service.find("m").engine
    assert isinstance(pool, ReplicaPool)
    engine = pool.replicas[0].engine
    assert isinstance(engine, ScriptedEngine)
    return [request.prompt.tolist() for request in engine.requests]


def _assistant(message: Message) -> dict[str, Any]:
    text = "".join(block.text for block in message.blocks if isinstance(block, TextBlock))
    reasoning = "".join(block.text for block in message.blocks if isinstance(block, ReasoningBlock))
    return {"role": "assistant", "content": text, "reasoning_content": reasoning}


def test_turns_are_recovered_and_exact_after_a_restart(tmp_path: Path) -> None:
    user = {"role": "user", "content": "Is it so?"}

    async def first() -> tuple[Message, list[int]]:
        service = build_service(_config(tmp_path, reasoning_retention="all"))
        await service.start()
        try:
            message = await _execute(service, user)
            return message, _prompts(service)[-1]
        finally:
            await service.stop()

    async def second(before: Message) -> list[int]:
        service = build_service(_config(tmp_path, reasoning_retention="all"))
        await service.start()
        try:
            await _execute(service, user, _assistant(before), user)
            return _prompts(service)[0]
        finally:
            await service.stop()

    message, prompt = asyncio.run(first())
    assert [block.type for block in message.blocks] == ["reasoning", "text"]
    assert asyncio.run(second(message))[: len(prompt)] == prompt


def test_an_upstream_engine_is_rejected(tmp_path: Path) -> None:
    config = Config(
        engine="openai",
        engine_url=("http://127.0.0.1:9/v1",),
        recover=("loop",),
        data_dir=tmp_path,
    )
    with pytest.raises(ValueError, match="--recover cannot be used with --engine openai"):
        build_service(config)


def test_recovery_is_off_by_default(tmp_path: Path) -> None:
    service = build_service(_config(tmp_path))
    assert service.find("m").recovery.kinds == {"reasoning", "empty", "loop"}  # type: ignore[union-attr]
    assert Config().recover == ()
