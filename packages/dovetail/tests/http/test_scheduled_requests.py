"""How requests of all kinds end while their turns wait for room in the KV cache."""

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from http_fixture import NAME, Reply, Stage, head, run
from scheduling_fixture import ADMIN, CAPACITY, TEXT, body, scheduling, send, wait_until
from websocket_fixture import send_request, socket_to

from dovetail.engines.engine import EngineRequest
from dovetail.routing.session_admission import SessionAdmission
from dovetail.routing.session_scheduler import SessionScheduler


@asynccontextmanager
async def full_cache() -> AsyncIterator[tuple[Stage, SessionAdmission, asyncio.Event]]:
    """A server whose KV cache is full while a turn of another session runs."""
    async with scheduling() as (stage, sessions, go_on):
        other = asyncio.create_task(send(stage, "other"))
        await wait_until(lambda: stage.engine.running)
        yield stage, sessions, go_on
        go_on.set()
        await other


def scheduler_of(sessions: SessionAdmission) -> SessionScheduler:
    ((_, scheduler),) = sessions.schedulers()
    return scheduler


async def check_nothing_waits(stage: Stage, sessions: SessionAdmission) -> None:
    """Wait until only the running turn is left, and no request is counted as active."""
    await wait_until(lambda: not sessions.has_waiting_turns(0))
    await wait_until(lambda: stage.app.draining.active_requests == 1)
    (state,) = [one for _, one in sessions.sessions()]
    assert state.status == "running"
    assert len(stage.engine.requests) == 1


def test_disconnect_ends_the_wait_of_a_request_without_stream() -> None:
    async def scene() -> None:
        async with full_cache() as (stage, sessions, _):
            _, writer = await stage.connect()
            sent = json.dumps(body()).encode()
            headers = {"x_dynamo_session_id": "one", "x_api_key": ADMIN}
            writer.write(head("POST", "/v1/messages", len(sent), headers) + sent)
            await wait_until(lambda: sessions.has_waiting_turns(0))
            writer.close()
            await check_nothing_waits(stage, sessions)

    run(scene)


def test_disconnect_ends_the_wait_of_a_websocket() -> None:
    async def scene() -> None:
        async with full_cache() as (stage, sessions, _):
            async with socket_to(stage, x_api_key=ADMIN) as socket:
                await send_request(socket, TEXT, max_output_tokens=50)
                await wait_until(lambda: sessions.has_waiting_turns(0))
            await check_nothing_waits(stage, sessions)

    run(scene)


def test_cancel_ends_the_wait_of_a_background_response() -> None:
    async def scene() -> None:
        async with full_cache() as (stage, sessions, _):
            client = stage.openai(key=ADMIN)
            created = await client.responses.create(model=NAME, input=TEXT, background=True)
            await wait_until(lambda: sessions.has_waiting_turns(0))
            await client.responses.cancel(created.id)
            await check_nothing_waits(stage, sessions)

    run(scene)


def test_all_choices_wait_and_end(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with full_cache() as (stage, sessions, go_on):
            headers = {"x_api_key": ADMIN, "x_dynamo_session_id": "one"}
            request = stage.request("POST", "/v1/chat/completions", body(n=3), **headers)
            choices = asyncio.create_task(request)
            await wait_until(lambda: scheduler_of(sessions).waiting_turns == 3)
            go_on.set()
            assert len((await choices).json["choices"]) == 3
            assert len(stage.engine.requests) == 4
            assert scheduler_of(sessions).running_turns == 0

    with caplog.at_level(logging.INFO, "dovetail.routing.session_queue"):
        run(scene)
    resumed = [vars(one)["fields"] for one in caplog.records if one.msg == "session_resumed"]
    assert [one["session"].split("#")[0] for one in resumed] == ["one"] * 3


@pytest.mark.parametrize(
    ("fields", "reserved"),
    [({}, 50), ({"n": 3}, 150), ({"nvext": {"agent_hints": {"osl": 10}}}, 10)],
    ids=["average", "choices", "osl"],
)
def test_outputs_of_a_request_are_reserved(fields: dict[str, Any], reserved: int) -> None:
    async def scene() -> None:
        async with scheduling(100_000) as (stage, sessions, go_on):
            request = stage.request("POST", "/v1/chat/completions", body(**fields), x_api_key=ADMIN)
            task = asyncio.create_task(request)
            await wait_until(lambda: stage.engine.running == fields.get("n", 1))
            prompt = len(stage.engine.requests[0].prompt)
            assert scheduler_of(sessions).used_tokens == prompt + reserved
            go_on.set()
            await task

    run(scene)


def test_text_completion_leaves_no_session() -> None:
    async def scene() -> None:
        async with scheduling(100_000) as (stage, sessions, go_on):
            go_on.set()
            fields = {"model": NAME, "prompt": TEXT, "max_tokens": 50}
            reply = await stage.request("POST", "/v1/completions", fields, x_api_key=ADMIN)
            assert reply.status == 200
            assert sessions.stats.waits.count == 1
            await wait_until(lambda: not [*sessions.sessions()])

    run(scene)


async def run_turns(stage: Stage, go_on: asyncio.Event) -> list[EngineRequest]:
    """Run three sessions of three turns side by side. Return what the engine receives."""
    histories: dict[str, list[dict[str, Any]]] = {
        name: [{"role": "user", "content": TEXT + name}] for name in "abc"
    }
    received = stage.engine.requests
    for number in range(3):
        tasks: list[asyncio.Task[Reply]] = []
        for at, (name, history) in enumerate(histories.items()):
            fields = body(messages=history, nvext={"agent_hints": {"priority": at}})
            headers = {"x_dynamo_session_id": name, "x_api_key": ADMIN}
            headers["x_dynamo_session_final"] = str(number == 2 and at == 2).lower()
            tasks.append(
                asyncio.create_task(stage.request("POST", "/v1/messages", fields, **headers))
            )
            await wait_until(lambda: len(received) == number * 3 + at + 1)  # noqa: B023
        go_on.set()
        for history, reply in zip(histories.values(), await asyncio.gather(*tasks), strict=True):
            (call,) = [one for one in reply.json["content"] if one["type"] == "tool_use"]
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": "a"}
            history.append({"role": "assistant", "content": reply.json["content"]})
            history.append({"role": "user", "content": [result]})
        go_on.clear()
    return [msgspec.structs.replace(one, id="") for one in received]


def test_engine_receives_the_same_requests_with_and_without_scheduling() -> None:
    async def scene() -> None:
        found = []
        for is_on in (False, True):
            async with scheduling(100_000, is_on=is_on) as (stage, sessions, go_on):
                found.append(await run_turns(stage, go_on))
                assert sessions.stats.waits.count == (9 if is_on else 0)
                assert sessions.stats.waits.sum == 0
        assert found[0] == found[1]
        assert [one.session for one in found[0]] == ["a", "b", "c"] * 3

    run(scene)


def test_drain_finishes_turns_that_wait_for_sessions_between_turns() -> None:
    async def scene() -> None:
        async with scheduling() as (stage, sessions, go_on):
            first = asyncio.create_task(send(stage, "one"))
            await wait_until(lambda: stage.engine.running)
            scheduler = scheduler_of(sessions)
            # The engine prefills slowly, so the place of a session that is expected back is held.
            rate, now = scheduler.prefill_rate, asyncio.get_running_loop().time()
            rate.observe(rate.end(rate.start(0.0), now + 1000), 1000)
            go_on.set()
            await first
            waiting = asyncio.create_task(send(stage, "two"))
            await wait_until(lambda: sessions.has_waiting_turns(0))
            (held,) = [one for _, one in sessions.sessions() if one.status != "paused"]
            assert held.status == "held"
            assert held.expected_in_seconds is not None
            assert held.expected_in_seconds > 60
            stage.running.handle_exit(signal.SIGTERM, None)
            stage.running._captured_signals.clear()
            await waiting
            assert scheduler.used_tokens < CAPACITY

    run(scene)
