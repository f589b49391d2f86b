"""A server that is stopped: running requests finish, and new requests are rejected."""

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from http_fixture import NAME, Plan, Reply, Stage, StageEngine, head, read_reply, run, serving

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http.options import HttpOptions

USER = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": NAME, "max_tokens": 100, "messages": USER},
    "/v1/chat/completions": {"model": NAME, "messages": USER},
    "/v1/responses": {"model": NAME, "input": "Hi"},
    "/v1/completions": {"model": NAME, "prompt": "Hi"},
}
ERRORS = {
    "/v1/messages": ("overloaded_error", None),
    "/v1/chat/completions": ("server_error", "service_unavailable"),
    "/v1/responses": ("server_error", "service_unavailable"),
    "/v1/completions": ("server_error", "service_unavailable"),
}


def halting(engine: StageEngine, gate: asyncio.Event) -> Plan:
    """Generate half of a response, and the rest when the gate is opened."""

    async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        yield TokenDelta(engine.tokenizer.encode("Half "), cached=0)
        await gate.wait()
        yield TokenDelta([*engine.tokenizer.encode("and half."), engine.stop_id], finish="stop")

    return play


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition that is met soon."""
    for _ in range(3000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be so")


class Stop:
    """Send signals to the server without ending the process."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def once(self) -> None:
        self.send()
        await until(lambda: self._stage.app.draining.started)

    def send(self) -> None:
        self._stage.running.handle_exit(signal.SIGTERM, None)
        self._stage.running._captured_signals.clear()

    async def ended(self) -> None:
        """Wait until the server has stopped by itself."""
        running = self._stage.running
        await until(lambda: not (running.server_state.tasks or running.servers[0].is_serving()))


@asynccontextmanager
async def streaming(stage: Stage, path: str) -> AsyncIterator[asyncio.StreamReader]:
    """Open a stream and read its first half."""
    reader, writer = await stage.connect()
    body = json.dumps({**BODIES[path], "stream": True}).encode()
    writer.write(head("POST", path, len(body), {"connection": "keep-alive"}) + body)
    try:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"Half")
        yield reader
    finally:
        writer.close()


@pytest.mark.parametrize("path", list(BODIES))
def test_running_stream_finishes_and_its_connection_is_closed(path: str) -> None:
    async def scene() -> None:
        gate = asyncio.Event()
        async with serving() as stage:
            stage.engine.plan = halting(stage.engine, gate)
            async with streaming(stage, path) as reader:
                stop = Stop(stage)
                await stop.once()
                assert stage.metric("dovetail_draining") == 1
                gate.set()
                rest = await reader.read()  # until the connection is closed
                assert b"half." in rest
                assert b"error" not in rest.replace(b'"error":null', b"")
                assert rest.endswith(b"0\r\n\r\n")
            await stop.ended()
        assert stage.engine.stopped

    run(scene)


@pytest.mark.parametrize("path", list(BODIES))
def test_new_requests_get_retry_after(path: str) -> None:
    async def scene() -> None:
        gate = asyncio.Event()
        async with serving() as stage:
            stage.engine.plan = halting(stage.engine, gate)
            async with streaming(stage, "/v1/messages"):
                await Stop(stage).once()
                for stream in (False, True):
                    reply = await stage.request("POST", path, {**BODIES[path], "stream": stream})
                    assert_refused(reply, path)
                assert len(stage.engine.requests) == 1
                gate.set()

    run(scene)


def assert_refused(reply: Reply, path: str) -> None:
    kind, code = ERRORS[path]
    assert reply.status == 503
    assert int(reply.headers["retry-after"]) > 0
    assert reply.headers["connection"] == "close"
    assert reply.json["error"]["type"] == kind
    assert reply.json["error"].get("code") == code


def test_sdks_retry_the_error_of_a_draining_server() -> None:
    async def scene() -> None:
        gate = asyncio.Event()
        async with serving() as stage:
            stage.engine.plan = halting(stage.engine, gate)
            async with streaming(stage, "/v1/messages"):
                await Stop(stage).once()
                with pytest.raises(anthropic.InternalServerError) as messages:
                    await stage.anthropic().messages.create(
                        model=NAME, max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
                    )
                with pytest.raises(openai.InternalServerError) as responses:
                    await stage.openai().responses.create(model=NAME, input="Hi")
                assert messages.value.status_code == responses.value.status_code == 503
                gate.set()

    run(scene)


def test_probes_distinguish_a_draining_server_from_a_dead_one() -> None:
    async def scene() -> None:
        gate = asyncio.Event()
        async with serving() as stage:
            stage.engine.plan = halting(stage.engine, gate)
            assert (await stage.request("GET", "/ready")).status == 200
            async with streaming(stage, "/v1/messages"):
                await Stop(stage).once()
                for path in ("/ready", "/health"):
                    reply = await stage.request("GET", path)
                    assert (reply.status, reply.json) == (503, {"status": "draining"})
                assert (await stage.request("GET", "/live")).status == 200
                assert (await stage.request("GET", "/v1/models")).status == 200
                gate.set()

    run(scene)


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("why", ["deadline", "second signal"])
def test_aborted_stream_ends_with_an_error(path: str, why: str) -> None:
    async def scene() -> None:
        timeout = 0.0 if why == "deadline" else 300.0
        async with serving(HttpOptions(drain_timeout=timeout)) as stage:
            stage.engine.plan = halting(stage.engine, asyncio.Event())
            async with streaming(stage, path) as reader:
                stop = Stop(stage)
                stop.send()
                if why != "deadline":
                    await stop.once()
                rest = await reader.read()
                assert b"stopped before the response was complete" in rest
                assert b"message_stop" not in rest
                assert b"response.completed" not in rest
                assert b'finish_reason":"stop' not in rest
            await stop.ended()
        assert stage.engine.stopped
        line = await stage.ended.get()
        assert (line["status"], line["reason"]) == (503, "draining")
        assert line.get("finish") in (None, "error")

    run(scene)


def test_aborted_unary_response_is_an_error() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(drain_timeout=0.0)) as stage:
            stage.engine.plan = halting(stage.engine, asyncio.Event())
            request = asyncio.create_task(
                stage.request("POST", "/v1/chat/completions", BODIES["/v1/chat/completions"])
            )
            await stage.engine.began.wait()
            Stop(stage).send()
            reply = await request
            assert_refused(reply, "/v1/chat/completions")

    run(scene)


def test_queued_request_gets_an_error_at_the_drain_timeout() -> None:
    async def scene() -> None:
        path = "/v1/messages"
        async with serving(HttpOptions(max_concurrent=1)) as stage:
            stage.engine.plan = halting(stage.engine, asyncio.Event())
            async with streaming(stage, path):
                waiting = asyncio.create_task(stage.request("POST", path, BODIES[path]))
                await until(lambda: stage.app.draining.active_requests == 2)
                stop = Stop(stage)
                await stop.once()
                stop.send()
                assert_refused(await waiting, path)

    run(scene)


def test_idle_connections_are_closed_and_an_arriving_request_gets_a_response() -> None:
    async def scene() -> None:
        gate = asyncio.Event()
        async with serving() as stage:
            stage.engine.plan = halting(stage.engine, gate)
            idle, idler = await stage.connect()
            idler.write(head("GET", "/live", 0, {"connection": "keep-alive"}))
            assert (await read_reply(idle)).status == 200
            coming, comer = await stage.connect()
            body = json.dumps(BODIES["/v1/messages"]).encode()
            sent = head("POST", "/v1/messages", len(body)) + body
            comer.write(sent[:30])
            async with streaming(stage, "/v1/messages"):
                await Stop(stage).once()
                assert await idle.read() == b""
                comer.write(sent[30:])
                assert_refused(await read_reply(coming), "/v1/messages")
                gate.set()
            idler.close()
            comer.close()

    run(scene)


def test_output_before_the_abort_is_recorded() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(drain_timeout=0.0)) as stage:
            stage.engine.plan = halting(stage.engine, asyncio.Event())
            async with streaming(stage, "/v1/messages") as reader:
                Stop(stage).send()
                assert b"overloaded_error" in await reader.read()
            ledger = stage.app.service.entries[0].preparer._ledger  # type: ignore[union-attr]
            assert ledger.sequence == 2  # the turn was opened and recorded

    run(scene)


@pytest.mark.parametrize("path", [*BODIES, "/v1/tokenize"])
@pytest.mark.parametrize("streams", [False, True])
def test_body_that_is_arriving_when_the_drain_ends_gets_an_error(path: str, streams: bool) -> None:
    """The drain does not wait for it, but its client learns that it may retry elsewhere."""

    async def scene() -> None:
        gate = asyncio.Event()
        async with serving() as stage:
            stage.engine.plan = halting(stage.engine, gate)
            arriving, writer = await stage.connect()
            body = json.dumps(BODIES.get(path, {"prompt": "Hi"})).encode()
            writer.write(head("POST", path, len(body)) + body[:-1])
            await until(lambda: stage.app.draining.arriving_requests == 1)
            stop = Stop(stage)
            if streams:
                async with streaming(stage, "/v1/messages"):
                    await stop.once()
                    gate.set()
            else:
                await stop.once()
            reply = await read_reply(arriving)
            assert (reply.status, reply.headers["retry-after"]) == (503, "2")
            assert reply.json["error"]["message"]
            writer.close()
            await stop.ended()
            assert stage.app.draining.arriving_requests == 0

    run(scene)
