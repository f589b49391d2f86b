"""The HTTP client with servers that send exact bytes."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dovetail_verify.http_client import (
    Endpoint,
    HttpConnection,
    SseParser,
    TargetTimeout,
    TargetUnreachable,
    open_connection,
)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@asynccontextmanager
async def connected(
    handle: Handler, timeout_seconds: float = 5.0, path: Path | None = None
) -> AsyncIterator[HttpConnection]:
    """Connect to a server that handles one connection."""
    done = asyncio.Event()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        finally:
            writer.close()
            done.set()

    if path is None:
        server = await asyncio.start_server(run, "127.0.0.1", 0)
        endpoint = Endpoint(port=server.sockets[0].getsockname()[1])
    else:
        server = await asyncio.start_unix_server(run, path)
        endpoint = Endpoint(socket=str(path))
    async with server:
        async with open_connection(endpoint, timeout_seconds) as connection:
            yield connection
        await done.wait()


def responding(*responses: bytes) -> Handler:
    """Send each response after a request without a body."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for response in responses:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(response)
            await writer.drain()

    return handle


def get(*responses: bytes) -> tuple[int, bytes]:
    """Send one GET request to a server with these responses."""

    async def run() -> tuple[int, bytes]:
        async with connected(responding(*responses)) as connection:
            status, _, body = await connection.request("GET", "/", {})
            return status, body

    return asyncio.run(run())


def test_connection_is_reused_for_several_requests() -> None:
    async def run() -> list[tuple[int, bytes, bool]]:
        found = []
        last = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        async with connected(responding(OK, last)) as connection:
            for _ in range(2):
                status, _, body = await connection.request("GET", "/", {})
                found.append((status, body, connection.is_reusable))
        return found

    assert asyncio.run(run()) == [(200, b"ok", True), (200, b"ok", False)]


def test_response_to_head_has_no_body() -> None:
    async def run() -> tuple[int, bytes]:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
        async with connected(responding(head)) as connection:
            status, _, body = await connection.request("HEAD", "/", {})
            return status, body

    assert asyncio.run(run()) == (200, b"")


def test_upgrades_and_interim_responses() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    assert get(interim + OK) == (200, b"ok")

    async def upgrade() -> tuple[int, str]:
        switched = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\nraw"
        async with connected(responding(switched)) as connection:
            headers = {"connection": "upgrade", "upgrade": "websocket"}
            status, found, _ = await connection.request("GET", "/", headers)
            return status, found["upgrade"]

    assert asyncio.run(upgrade()) == (101, "websocket")


def test_chunks_are_returned_as_they_arrive() -> None:
    read_first = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await read_first.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async def run() -> list[bytes]:
        found = []
        async with connected(handle) as connection:
            response = await connection.stream("GET", "/", {})
            async for chunk in response.iter_chunks():
                found.append(chunk)
                read_first.set()
        return found

    assert asyncio.run(run()) == [b"one", b"two"]


def test_response_to_a_partially_read_request_is_returned() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.transport.abort()  # with unread data, the client gets a reset

    async def run() -> int:
        async with connected(handle) as connection:
            status, _, _ = await connection.request("POST", "/", {}, b"x" * (20 << 20))
            return status

    assert asyncio.run(run()) == 413


def test_leaving_the_block_disconnects() -> None:
    seen = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx")
        try:
            seen.append(await reader.read())
        except ConnectionError as error:
            seen.append(bytes(type(error).__name__, "ascii"))

    async def run() -> bytes:
        async with connected(handle) as connection:
            return await anext((await connection.stream("GET", "/", {})).iter_chunks())

    assert asyncio.run(run()) == b"x"
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"", "closed the connection before the response was complete"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "closed the connection before"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", "sent an invalid response"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", "sent an invalid"),
        (b"no HTTP at all\r\n\r\n", "sent an invalid response"),
    ],
)
def test_invalid_response_raises_an_error(response: bytes, message: str) -> None:
    with pytest.raises(TargetUnreachable, match=message):
        get(response)


def test_server_that_sends_no_data_times_out() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def run() -> None:
        async with connected(handle, timeout_seconds=0.05) as connection:
            await connection.request("GET", "/", {})

    with pytest.raises(TargetTimeout, match=r"sent no data for 0\.05 s"):
        asyncio.run(run())


def test_invalid_api_key_is_not_in_the_error_message() -> None:
    async def run() -> None:
        async with connected(responding()) as connection:
            await connection.request("GET", "/", {"x-api-key": "secret\nkey"})

    with pytest.raises(TargetUnreachable, match="is not valid HTTP") as raised:
        asyncio.run(run())
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:9", "cannot connect to http://127.0.0.1:9 "),
        ("http://no-such-host.invalid", "no such host"),
        ("unix:///no/such/socket", "No such file"),
    ],
)
def test_connection_error_states_the_reason(url: str, message: str) -> None:
    async def run() -> None:
        async with open_connection(Endpoint.parse(url), 5.0):
            pass

    with pytest.raises(TargetUnreachable, match=message):
        asyncio.run(run())


def test_untrusted_certificate_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*arguments: object, **more: object) -> None:
        error = ssl.SSLCertVerificationError(1, "failed")
        error.verify_message = "self-signed certificate"
        raise error

    async def run() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "create_connection", refuse)
        async with open_connection(Endpoint.parse("https://127.0.0.1"), 5.0):
            pass

    with pytest.raises(TargetUnreachable, match="self-signed certificate"):
        asyncio.run(run())


def test_connects_to_a_unix_socket(tmp_path: Path) -> None:
    async def run() -> int:
        async with connected(responding(OK), path=tmp_path / "s") as connection:
            status, _, _ = await connection.request("GET", "/", {})
            return status

    assert asyncio.run(run()) == 200


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://host", Endpoint("host", 80)),
        ("https://host/base/", Endpoint("host", 443, None, True, "/base")),
        ("http://[::1]:8000", Endpoint("::1", 8000)),
        ("unix:///a/b.sock", Endpoint(socket="/a/b.sock")),
    ],
)
def test_endpoint_parses_urls(url: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(url) == endpoint
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize("url", ["host:80", "ftp://host", "http://user@host", "http://host?x=1"])
def test_endpoint_rejects_other_urls(url: str) -> None:
    with pytest.raises(ValueError, match=r"the URL "):
        Endpoint.parse(url)


def test_sse_parser_accepts_chunks_of_any_size() -> None:
    stream = ": comment\n\nevent: a\r\ndata: 1\r\ndata:2\r\n\r\nid: 7\ndata: ü\n\ndata: unfinished"
    expected = [("a", "1\n2"), ("", "ü")]
    data = stream.encode()
    for size in (1, 2, 3, len(data)):
        parser = SseParser()
        found = [
            event for at in range(0, len(data), size) for event in parser.feed(data[at : at + size])
        ]
        assert found == expected, size
