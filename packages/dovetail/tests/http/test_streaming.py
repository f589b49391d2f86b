"""Streams with disturbances: clients that disconnect or read slowly, and engines that fail."""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import count
from typing import Any

import pytest
from http_fixture import NAME, THINKING_TEMPLATE, Stage, head, read_reply, run, serving

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http.options import HttpOptions
from dovetail.http.response import StreamingResponse
from dovetail.net import response_writer
from dovetail_model import DovetailError, EngineUnavailable, Overloaded

MESSAGE = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": NAME, "max_tokens": 100, "messages": MESSAGE},
    "/v1/responses": {"model": NAME, "input": "Hi"},
    "/v1/chat/completions": {"model": NAME, "messages": MESSAGE},
    "/v1/completions": {"model": NAME, "prompt": "Hi"},
}
APIS = list(BODIES)


@pytest.fixture(autouse=True, params=["directly", "as ASGI has it"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with direct writes, as with our server, and with ASGI messages, as with others."""
    if request.param != "directly":
        monkeypatch.setattr(response_writer, "DIRECT_WRITER_EXTENSION", "not offered")


def request(path: str, *, stream: bool = True) -> bytes:
    body = json.dumps({**BODIES[path], "stream": stream}).encode()
    return head("POST", path, len(body)) + body


def hangs(stage: Stage, *, after: int) -> None:
    """Generate so many tokens and then none, forever."""

    async def play(engine_request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        for _ in range(after):
            yield TokenDelta(stage.engine.tokenizer.encode("a"))
        await asyncio.Event().wait()

    stage.engine.plan = play


def fails(stage: Stage, error: Exception, *, after: int) -> None:
    async def play(engine_request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        for _ in range(after):
            yield TokenDelta(stage.engine.tokenizer.encode("a"))
        raise error

    stage.engine.plan = play


@pytest.mark.parametrize("path", APIS)
def test_disconnect_cancels_the_engine(path: str) -> None:
    async def scene() -> None:
        async with serving() as stage:
            hangs(stage, after=5)
            reader, writer = await stage.connect()
            writer.write(request(path))
            await reader.readuntil(b"a")
            writer.close()
            await stage.engine.closed.wait()
            end = await stage.ended.get()
            assert end["status"] == 499
            assert end["disconnected"] is True
            assert stage.engine.running == 0
            assert stage.metric("dovetail_disconnected_clients_total", model=NAME) == 1
            assert stage.metric("dovetail_queued_requests") == 0

    run(scene)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", APIS)
def test_disconnect_before_the_first_token(path: str, stream: bool) -> None:
    async def scene() -> None:
        async with serving() as stage:
            hangs(stage, after=0)
            _, writer = await stage.connect()
            writer.write(request(path, stream=stream))
            await stage.engine.began.wait()
            writer.close()
            end = await stage.ended.get()
            assert end["status"] == 499
            assert stage.engine.closed.is_set()

    run(scene)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_disconnect_before_the_first_output(path: str) -> None:
    async def scene() -> None:
        async with serving(start_timeout_seconds=0.01) as stage:
            hangs(stage, after=0)
            reader, writer = await stage.connect()
            writer.write(request(path))
            await reader.readuntil(b"assistant")  # the stream has started, the output has not
            writer.close()
            end = await stage.ended.get()
            assert end["status"] == 499
            assert stage.engine.closed.is_set()

    run(scene)


def test_output_before_a_disconnect_is_recorded() -> None:
    async def scene() -> None:
        async with serving() as stage:
            hangs(stage, after=5)
            reader, writer = await stage.connect()
            writer.write(request("/v1/messages"))
            for _ in range(5):
                await reader.readuntil(b'"text_delta","text":"a"')
            writer.close()
            await stage.ended.get()
            stage.engine.plan = stage.engine.script("Yes.")
            turn = {"role": "assistant", "content": "aaaaa"}
            history = [*MESSAGE, turn, {"role": "user", "content": "Go on"}]
            await stage.request(
                "POST", "/v1/messages", {**BODIES["/v1/messages"], "messages": history}
            )
            assert stage.metric("dovetail_replayed_turns_total", model=NAME, kind="exact") == 1

    run(scene)


def test_slow_reader_applies_backpressure_and_loses_nothing() -> None:
    deltas, size = 2000, 500

    async def scene() -> None:
        async with serving(send_buffer=8192) as stage:
            letter = stage.engine.tokenizer.encode("a")

            async def play(engine_request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                for at in range(deltas):
                    yield TokenDelta(letter * size, finish="stop" if at == deltas - 1 else None)

            stage.engine.plan = play
            narrow = await _narrow(stage, "/v1/chat/completions")
            await _paused(stage)
            given = await _stable(lambda: stage.engine.deltas_sent)
            assert given < deltas / 2
            reader, writer = await asyncio.open_connection(sock=narrow)
            reply = await read_reply(reader)
            writer.close()
            frames = reply.body.decode().split("\n\n")
            chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]
            text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
            assert text == "a" * deltas * size
            assert frames[-2] == "data: [DONE]"

    run(scene)


async def _narrow(stage: Stage, path: str) -> socket.socket:
    """A client that has sent a request, has small buffers, and does not read the response."""
    loop, narrow = asyncio.get_running_loop(), socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.setblocking(False)
    await loop.sock_connect(narrow, ("127.0.0.1", stage.port))
    await loop.sock_sendall(narrow, request(path))
    return narrow


async def _stable(value: Callable[[], int]) -> int:
    """Return the value when it no longer changes. The kernel may fill the buffers with delays."""
    before, now = -1, value()
    while now != before:
        await asyncio.sleep(0.1)
        before, now = now, value()
    return now


async def _paused(stage: Stage) -> None:
    """Wait until the server must not write: all buffers are full."""
    while True:
        connections: Any = stage.running.server_state.connections
        if any(connection.flow.write_paused for connection in connections):
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_client_that_does_not_read_gets_no_keep_alives(path: str) -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keep_alive=0.01), send_buffer=8192) as stage:

            async def play(engine_request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                while True:
                    await asyncio.sleep(0)
                    yield TokenDelta(stage.engine.tokenizer.encode("a" * 500))

            stage.engine.plan = play
            narrow = await _narrow(stage, path)
            await _paused(stage)
            (connection,) = stage.running.server_state.connections
            await _stable(connection.transport.get_write_buffer_size)  # it has no end otherwise
            narrow.close()

    run(scene)


@pytest.mark.parametrize("path", APIS)
def test_no_keep_alive_after_the_end(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The complete response is generated before its first frame is sent."""
    looks: list[StreamingResponse] = []

    async def scene() -> None:
        async with serving(HttpOptions(keep_alive=0.01)) as stage:
            stage.engine.plan = stage.engine.script("Hello.", step=100)
            reader, writer = await stage.connect()
            writer.write(request(path))
            assert b"Hello." in (await read_reply(reader)).body
            monkeypatch.setattr(StreamingResponse, "_check_keep_alive", looks.append)
            await asyncio.sleep(0.05)
            assert not looks
            writer.close()

    run(scene)


@pytest.mark.parametrize(
    ("path", "error", "status", "kind"),
    [
        ("/v1/messages", Overloaded("busy", retry_after=7), 529, "overloaded_error"),
        ("/v1/messages", EngineUnavailable("gone"), 503, "overloaded_error"),
        ("/v1/responses", EngineUnavailable("gone"), 503, "server_error"),
        ("/v1/chat/completions", Overloaded("busy", retry_after=7), 503, "server_error"),
        ("/v1/completions", EngineUnavailable("gone"), 503, "server_error"),
        ("/v1/chat/completions", ZeroDivisionError("secret"), 500, "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_engine_failure_before_the_stream_is_a_status(
    path: str, error: Exception, status: int, kind: str, stream: bool
) -> None:
    async def scene() -> None:
        async with serving() as stage:
            fails(stage, error, after=0)
            reader, writer = await stage.connect()
            writer.write(request(path, stream=stream))
            reply = await read_reply(reader)
            writer.close()
            assert reply.status == status
            assert reply.json["error"]["type"] == kind
            assert "secret" not in reply.body.decode()
            wait = (error.retry_after or 2) if isinstance(error, DovetailError) else None
            assert reply.headers.get("retry-after") == (f"{wait:.0f}" if wait else None)

    run(scene)


@pytest.mark.parametrize("error", [EngineUnavailable("it died"), ZeroDivisionError("secret")])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/messages", b"event: error\n"),
        ("/v1/responses", b"event: response.failed\n"),
        ("/v1/chat/completions", b'data: {"error":'),
        ("/v1/completions", b'data: {"error":'),
    ],
)
def test_engine_failure_within_the_stream_is_an_error_event_and_ends_it(
    path: str, expected: bytes, error: Exception
) -> None:
    async def scene() -> None:
        async with serving() as stage:
            fails(stage, error, after=3)
            reader, writer = await stage.connect()
            writer.write(request(path))
            reply = await read_reply(reader)
            writer.close()
            assert reply.status == 200
            assert reply.body.count(expected) == 1
            assert reply.body.rindex(expected) == reply.body.rstrip().rindex(b"\n\n") + 2
            assert b"secret" not in reply.body
            end = await stage.ended.get()
            assert end["status"] in (500, 503)
            assert end["finish"] == "error"

    run(scene)


@pytest.mark.parametrize("path", APIS)
def test_engine_failure_in_a_unary_response_is_a_status(path: str) -> None:
    async def scene() -> None:
        async with serving() as stage:
            fails(stage, EngineUnavailable("it died"), after=3)
            reader, writer = await stage.connect()
            writer.write(request(path, stream=False))
            reply = await read_reply(reader)
            writer.close()
            assert reply.status == 503
            assert "it died" in reply.json["error"]["message"]

    run(scene)


@pytest.mark.parametrize(
    ("path", "template", "sign"),
    [
        ("/v1/messages", None, b"event: ping\n"),
        ("/v1/messages", THINKING_TEMPLATE, b'"thinking_delta","thinking":""'),
        ("/v1/responses", None, b"event: response.in_progress\n"),
        ("/v1/chat/completions", None, b": keep-alive\n"),
    ],
)
def test_silent_engine_is_bridged_by_keep_alives(
    path: str, template: str | None, sign: bytes
) -> None:
    more: dict[str, Any] = {} if template is None else {"template": template}

    async def scene() -> None:
        async with serving(
            HttpOptions(keep_alive=0.01), start_timeout_seconds=0.01, **more
        ) as stage:
            seen = asyncio.Event()

            async def play(engine_request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                await seen.wait()
                ids = [*stage.engine.tokenizer.encode("</think>Late."), stage.engine.stop_id]
                yield TokenDelta(ids, finish="stop")

            stage.engine.plan = play
            reader, writer = await stage.connect()
            writer.write(request(path))
            for _ in range(3):
                await reader.readuntil(sign)
            seen.set()
            rest = await reader.readuntil(b"\r\n0\r\n\r\n")
            writer.close()
            assert b"Late." in rest

    run(scene)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Allow files for both ends of every connection: some systems allow only 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_five_hundred_concurrent_streams() -> None:
    streams = 500

    async def scene() -> None:
        async with serving() as stage:
            everybody = asyncio.Event()
            place = count()

            async def play(engine_request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                number = next(place)
                if number == streams - 1:
                    everybody.set()
                yield TokenDelta(stage.engine.tokenizer.encode("["))
                await everybody.wait()
                for letter in f"{number:04d}":
                    yield TokenDelta(stage.engine.tokenizer.encode(letter))
                    await asyncio.sleep(0)
                yield TokenDelta([stage.engine.stop_id], finish="stop")

            stage.engine.plan = play

            async def listen(path: str) -> str:
                reader, writer = await stage.connect()
                writer.write(request(path))
                reply = await read_reply(reader)
                writer.close()
                assert reply.status == 200
                return _text(reply.body)

            texts = await asyncio.gather(*(listen(APIS[at % 4]) for at in range(streams)))
            assert sorted(texts) == [f"[{number:04d}" for number in range(streams)]
            assert stage.engine.running == 0
            assert stage.metric("dovetail_inflight_requests", endpoint="messages") == 0

    run(scene)


def _text(body: bytes) -> str:
    """Return the visible text of a stream of any API."""
    text = ""
    for line in body.decode().splitlines():
        if not line.startswith("data: {"):
            continue
        data = json.loads(line.removeprefix("data: "))
        match data:
            case {"type": "content_block_delta", "delta": {"text": piece}}:
                text += piece
            case {"type": "response.output_text.delta", "delta": piece}:
                text += piece
            case {"choices": [{"delta": {"content": piece}}]} | {"choices": [{"text": piece}]}:
                text += piece
    return text
