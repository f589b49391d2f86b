"""WebSockets that are misused, left idle or closed by the server."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from http_fixture import NAME, Stage, run, serving
from websocket_fixture import (
    closed,
    event,
    read_response,
    refusal,
    request_response,
    send_request,
    socket_to,
    text_of,
    until,
)
from websockets.exceptions import ConnectionClosed

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http import memory
from dovetail.http.options import HttpOptions, WebSocketOptions
from dovetail.http.websocket import protocol as carrier
from dovetail.http.websocket import session
from dovetail.http.websocket.messages import (
    MIN_LARGE_MESSAGE_BYTES,
    WebSocketRequest,
    decode_message,
)
from dovetail_model import InvalidRequest

FIELDS = f'"model":"{NAME}","input":"Hi"'


def hangs(stage: Stage, *, after: int = 1) -> None:
    """Generate so many tokens and then none, forever."""

    async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        for _ in range(after):
            yield TokenDelta(stage.engine.tokenizer.encode("a"))
        await asyncio.Event().wait()

    stage.engine.plan = play


def test_disconnect_cancels_the_engine() -> None:
    async def scene() -> None:
        async with serving() as stage:
            hangs(stage, after=3)
            async with socket_to(stage) as socket:
                await send_request(socket)
                await send_request(socket, "waits behind it")
                while (await event(socket))["type"] != "response.output_text.delta":
                    pass
                socket.transport.abort()
                await stage.engine.closed.wait()
            ends = [await stage.ended.get() for _ in range(2)]
            assert [end["status"] for end in ends] == [101, 499]
            assert len(stage.engine.requests) == 1
            await until(lambda: not stage.metric("dovetail_websocket_connections"))
            assert stage.metric("dovetail_queued_requests") == 0

    run(scene)


def test_slow_reader_applies_backpressure_and_loses_nothing() -> None:
    deltas, size = 2000, 500

    async def scene() -> None:
        async with serving(send_buffer=8192) as stage:
            letter = stage.engine.tokenizer.encode("a")

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                for at in range(deltas):
                    yield TokenDelta(letter * size, finish="stop" if at == deltas - 1 else None)

            stage.engine.plan = play
            async with socket_to(stage) as socket:
                socket.transport.pause_reading()
                await send_request(socket)
                (served,) = stage.running.server_state.connections
                assert isinstance(served, carrier.BoundedWebSocketProtocol)
                room = served.writable
                await until(lambda: not room.is_set())  # all buffers are full
                given = stage.engine.deltas_sent
                assert given < deltas / 2
                for _ in range(200):
                    await asyncio.sleep(0)
                assert stage.engine.deltas_sent == given
                socket.transport.resume_reading()
                assert text_of(await read_response(socket)) == "a" * deltas * size

    run(scene)


def test_number_of_queued_messages_is_limited() -> None:
    options = HttpOptions(websocket_options=WebSocketOptions(max_queued_messages=2, max_streams=2))

    async def scene() -> None:
        async with serving(options) as stage, socket_to(stage) as socket:
            hangs(stage, after=0)
            for text in ("runs", "waits", "waits", "is refused"):
                await send_request(socket, text, stream_id="a")
            error = await event(socket)
            assert (error["status"], error["stream_id"]) == (429, "a")
            assert error["error"]["code"] == "rate_limit_exceeded"
            assert error["headers"]["retry-after"] == "1"
            await send_request(socket, stream_id="b")
            await send_request(socket, stream_id="c")
            assert (await event(socket))["stream_id"] == "c"
            assert len(stage.engine.requests) == 2

    run(scene)


def test_size_of_queued_messages_is_limited() -> None:
    async def scene() -> None:
        async with (
            serving(HttpOptions(max_body_bytes=10_000)) as stage,
            socket_to(stage) as socket,
        ):
            hangs(stage, after=0)
            for size in (8000, 8000, 8000):
                await send_request(socket, "x" * size)
            assert (await event(socket))["status"] == 429

    run(scene)


def test_too_large_message_closes_the_connection() -> None:
    async def scene() -> None:
        async with (
            serving(HttpOptions(max_body_bytes=10_000)) as stage,
            socket_to(stage) as socket,
        ):
            await send_request(socket, "x" * 20_000)
            assert await closed(socket) == 1009
            assert stage.engine.requests == []

    run(scene)


@pytest.mark.parametrize("piece", ["", "x"])
def test_message_with_too_many_fragments_closes_the_connection(piece: str) -> None:

    async def endless() -> AsyncGenerator[str]:
        while True:
            yield piece
            await asyncio.sleep(0)

    options = HttpOptions(websocket_options=WebSocketOptions(max_fragments=100))

    async def scene() -> None:
        async with serving(options) as stage, socket_to(stage) as socket:
            with pytest.raises(ConnectionClosed):
                await socket.send(endless())
            assert await closed(socket) == 1009

    run(scene)


@pytest.mark.parametrize("sent", [b"\x81", b"\x81\xfe\xff\xff0000and no more", b"\x01\x810000{"])
def test_message_timeout(sent: bytes) -> None:
    options = HttpOptions(websocket_options=WebSocketOptions(message_timeout_seconds=1.0))

    async def scene() -> None:
        async with serving(options) as stage:
            async with socket_to(stage) as socket:
                assert text_of(await request_response(socket)) == "Hello."
                for part in (b"\x89", b"\x800000"):  # a ping in two parts
                    socket.transport.write(part)
                    await asyncio.sleep(0.01)
                await asyncio.sleep(1.2)
                assert (
                    text_of(await request_response(socket)) == "Hello."
                )  # an idle connection has no incomplete message
                socket.transport.write(sent)
                assert await closed(socket) == 1008
            await until(lambda: not stage.metric("dovetail_websocket_connections"))

    run(scene)


def test_incomplete_messages_of_all_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may be as large as a body, so many WebSockets could exhaust the memory."""
    monkeypatch.setattr(memory.request_memory, "max_bodies", 2)
    monkeypatch.setattr(memory.request_memory, "small_request_bytes", 1000)
    size = 50_000
    half = b"\x81\xff" + size.to_bytes(8, "big") + bytes(4) + b"x" * (size - 1)
    first = b"\x01\xff" + (size - 1).to_bytes(8, "big") + bytes(4) + b"x" * (size - 1)

    async def scene() -> None:
        async with serving(HttpOptions(max_body_bytes=size)) as stage:
            async with AsyncExitStack() as opened:
                for sent in (half, first):
                    other = await opened.enter_async_context(socket_to(stage))
                    other.transport.write(sent)
                await until(lambda: memory.request_memory.total_bytes >= 2 * (size - 1))
                async with socket_to(stage) as socket:
                    assert text_of(await request_response(socket)) == "Hello."
                    socket.transport.write(half)
                    assert await closed(socket) == 1013
                await until(lambda: memory.request_memory.total_bytes < 2 * size)
                other.transport.abort()
                await until(lambda: memory.request_memory.total_bytes < size)
                async with socket_to(stage) as socket:
                    socket.transport.write(half)
                    await until(lambda: memory.request_memory.total_bytes >= 2 * (size - 1))
            await until(lambda: memory.request_memory.total_bytes == 0)

    run(scene)


def test_queued_messages_of_all_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.request_memory, "max_bodies", 1)
    monkeypatch.setattr(memory.request_memory, "small_request_bytes", 0)

    async def scene() -> None:
        async with serving(HttpOptions(max_body_bytes=1000)) as stage:
            hangs(stage)
            async with socket_to(stage) as one, socket_to(stage) as other:
                for socket in (one, other):
                    await send_request(socket)
                    await event(socket)
                    for _ in range(2):
                        await send_request(socket, "x" * 300)
                await until(lambda: memory.request_memory.total_bytes > 1000)
                await send_request(one, "x" * 100)
                while (error := await event(one))["type"] != "error":
                    pass
                assert error["status"] == 429
            await until(lambda: memory.request_memory.total_bytes == 0)

    run(scene)


def test_no_pongs_for_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would accumulate, one for each ping of the client."""
    made: list[carrier.BoundedWebSocketProtocol] = []
    opened = carrier.BoundedWebSocketProtocol.connection_made

    def note(self: carrier.BoundedWebSocketProtocol, transport: Any) -> None:
        made.append(self)
        opened(self, transport)

    monkeypatch.setattr(carrier.BoundedWebSocketProtocol, "connection_made", note)

    async def scene() -> None:
        async with serving() as stage, socket_to(stage) as socket:
            socket.transport.pause_reading()
            [server] = made
            pings = (b"\x89\xfd" + bytes(4) + b"p" * 125) * 1000
            while server.writable.is_set():
                socket.transport.write(pings)
                await asyncio.sleep(0)
            waits = server.transport.get_write_buffer_size()
            for _ in range(20):
                socket.transport.write(pings)
            await until(lambda: not socket.transport.get_write_buffer_size())
            await asyncio.sleep(0.05)
            assert server.transport.get_write_buffer_size() <= waits + len(pings)
            socket.transport.resume_reading()
            await until(server.writable.is_set)
            assert text_of(await request_response(socket)) == "Hello."

    run(scene)


def test_fragmented_message_is_assembled() -> None:
    async def scene() -> None:
        async with serving() as stage, socket_to(stage) as socket:
            await socket.send(json.dumps({"type": "response.create", "model": NAME, "input": "ü"}))
            await read_response(socket)
            whole = '{"type":"response.create",' + FIELDS + "}"
            await socket.send([whole[:30], whole[30:31], "", whole[31:]])
            assert text_of(await read_response(socket)) == "Hello."

    run(scene)


def test_idle_websocket_is_closed() -> None:
    options = HttpOptions(websocket_options=WebSocketOptions(idle_timeout_seconds=1.0))

    async def scene() -> None:
        async with serving(options) as stage, socket_to(stage) as socket:
            go_on = asyncio.Event()

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                await go_on.wait()
                yield TokenDelta([stage.engine.stop_id], finish="stop")

            stage.engine.plan = play
            await send_request(socket)
            await asyncio.sleep(1.2)
            go_on.set()  # a connection with a running response is not idle
            assert (await read_response(socket))[-1]["type"] == "response.completed"
            assert await closed(socket) == 1001

    run(scene)


@pytest.mark.long
def test_vanished_client_is_detected() -> None:
    options = HttpOptions(
        websocket_options=WebSocketOptions(ping_interval_seconds=0.3, ping_timeout_seconds=0.3)
    )

    async def scene() -> None:
        async with serving(options) as stage:
            hangs(stage)
            async with socket_to(stage) as socket:
                await send_request(socket)
                await stage.engine.began.wait()
                socket.transport.pause_reading()  # no pong will be sent
                await stage.engine.closed.wait()
            assert [(await stage.ended.get())["status"] for _ in range(2)] == [101, 499]

    run(scene)


def test_stopping_server_closes_idle_websockets_and_finishes_running_responses() -> None:
    async def scene() -> None:
        async with serving() as stage:
            go_on = asyncio.Event()

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                yield TokenDelta(stage.engine.tokenizer.encode("To the "))
                await go_on.wait()
                end = [*stage.engine.tokenizer.encode("end."), stage.engine.stop_id]
                yield TokenDelta(end, finish="stop")

            stage.engine.plan = play
            async with socket_to(stage) as idle, socket_to(stage) as busy:
                await send_request(busy)
                await stage.engine.began.wait()
                stage.app.draining.start()
                assert await closed(idle) == 1012
                status, headers, _ = await refusal(stage)
                assert (status, headers["retry-after"]) == (503, "2")
                go_on.set()
                assert text_of(await read_response(busy)) == "To the end."
                assert await closed(busy) == 1012

    run(scene)


def test_large_message_is_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is neither decoded nor split on the event loop, and counts as request memory."""
    threads: list[tuple[int, str, bool]] = []
    decode = decode_message

    def observe(data: str | bytes) -> WebSocketRequest:
        counted = memory.request_memory.total_bytes >= len(data)
        threads.append((threading.get_ident(), type(data).__name__, counted))
        return decode(data)

    monkeypatch.setattr(session, "decode_message", observe)

    async def scene() -> None:
        async with serving() as stage, socket_to(stage) as socket:
            for size in (10, MIN_LARGE_MESSAGE_BYTES):
                fields = {"type": "response.create", "model": NAME, "input": "é" * size}
                await socket.send(json.dumps(fields, ensure_ascii=False))
                last = (await read_response(socket))[-1]
                overflow = last["type"] == "response.failed"
                assert overflow == (size > 10), last
        assert memory.request_memory.total_bytes == 0

    run(scene)
    (small, large) = threads
    assert small[:2] == (threading.get_ident(), "str")
    assert large[0] != threading.get_ident()
    assert large[1:] == ("bytes", True)


def test_large_message_with_invalid_utf8_is_an_error() -> None:
    text = b'{"type":"response.create","model":"m","input":"' + b"x" * MIN_LARGE_MESSAGE_BYTES
    assert decode_message(text + b'"}').error is None
    for wrong in (b"\xff", b"\xc3"):
        assert isinstance(decode_message(text + wrong + b'"}').error, InvalidRequest)
