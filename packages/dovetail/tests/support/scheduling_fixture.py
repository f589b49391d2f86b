"""A server that schedules sessions, with an engine that tests control."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from http_fixture import CALL, NAME, Reply, Stage, service, serving

from dovetail.access.auth import ApiKeys
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http.options import HttpOptions
from dovetail.pipeline.registry import ModelRegistry
from dovetail.routing.pool import ReplicaPool
from dovetail.routing.session_admission import SessionAdmission
from dovetail.routing.session_turns import SchedulingLimits

ADMIN = "admin"
TEXT = "Hello there, all of you. " * 8  # 200 tokens: each byte is one
CAPACITY = 500  # two such prompts do not fit
#: The engine seems to prefill slowly, so places are held for long.
SLOW = SchedulingLimits(prefill_tokens_per_second=10.0)


def body(stream: bool = False, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": TEXT}]
    return {"model": NAME, "max_tokens": 50, "messages": messages, "stream": stream, **more}


@asynccontextmanager
async def scheduling(
    kv_tokens: int | None = CAPACITY,
    *,
    is_on: bool = True,
    limits: SchedulingLimits | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Stage, SessionAdmission, asyncio.Event]]:
    """A server that schedules sessions. Its engine waits for the event before each first token.

    `is_on`: False for the same server without scheduling.
    """
    registry, engine = service(**options)
    sessions = SessionAdmission(kv_tokens, limits)
    entry = next(registry.base_models())
    scheduled = replace(entry, engine=ReplicaPool([engine], sessions=sessions if is_on else None))
    registry = ModelRegistry([scheduled])
    go_on = asyncio.Event()
    text = CALL.replace("look_up", "bash")

    async def wait_and_call(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        await go_on.wait()
        ids = [*engine.tokenizer.encode(text), engine.stop_id]
        yield TokenDelta(ids, finish="stop", cached=0)

    engine.plan = wait_and_call
    async with serving(HttpOptions(keys=ApiKeys([ADMIN])), registry=registry) as stage:
        stage.engine = engine
        yield stage, sessions, go_on


async def send(stage: Stage, session: str, **headers: str) -> Reply:
    named = {"x_dynamo_session_id": session, "x_api_key": ADMIN, **headers}
    reply = await stage.request("POST", "/v1/messages", body(), **named)
    assert reply.status == 200, reply.body
    return reply


async def wait_until(condition: Any) -> None:
    async with asyncio.timeout(50):
        while not condition():  # noqa: ASYNC110 - many different conditions
            await asyncio.sleep(0.005)
