"""Before a request: unlimited headers, idle connections, and the lifespan."""

import pytest
from http_fixture import head, read_reply, run, service, serving

from dovetail.http.app import App
from dovetail.net import http_protocol
from dovetail.net.exchange import Message
from dovetail.net.http_protocol import ConnectionTimeouts


def test_headers_are_bounded() -> None:
    async def scene() -> None:
        async with serving() as stage:
            reader, writer = await stage.connect()
            writer.write(b"GET / HTTP/1.1\r\nx-long: " + b"x" * http_protocol.MAX_HEADER_BYTES)
            reply = await read_reply(reader)
            assert reply.status == 431
            assert await reader.read() == b""
            writer.close()

    run(scene)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost: te"])
def test_header_timeout(sent: bytes) -> None:
    timeouts = ConnectionTimeouts(header_seconds=0.02)

    async def scene() -> None:
        async with serving(timeouts=timeouts) as stage:
            reader, writer = await stage.connect()
            writer.write(sent)
            assert (await read_reply(reader)).status == 408
            assert await reader.read() == b""
            writer.close()

    run(scene)


def test_connection_is_reused() -> None:
    async def scene() -> None:
        async with serving() as stage:
            reader, writer = await stage.connect()
            for _ in range(3):
                writer.write(head("GET", "/live", 0, {"connection": "keep-alive"}))
                assert (await read_reply(reader)).status == 200
            writer.close()

    run(scene)


def test_service_starts_and_stops_with_the_server() -> None:
    async def scene() -> None:
        async with serving() as stage:
            assert (await stage.request("GET", "/live")).status == 200
            assert stage.engine.started
            assert not stage.engine.stopped
        assert stage.engine.stopped

    run(scene)


def test_startup_failure_states_the_reason() -> None:
    async def scene() -> None:
        made, engine = service()

        async def fail() -> None:
            raise RuntimeError("no weights")

        engine.start = fail  # type: ignore[method-assign]
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "lifespan.startup"}

        async def send(message: Message) -> None:
            sent.append(message)

        await App(made)({"type": "lifespan"}, receive, send)
        reason = "RuntimeError: no weights"
        assert sent == [{"type": "lifespan.startup.failed", "message": reason}]

    run(scene)
