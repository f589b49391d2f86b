"""The engines' HTTP client against a server whose responses the test defines byte by byte."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from raw_http_server import (
    CHUNKED,
    FAULTS,
    GET,
    POST,
    SHORT,
    chunk,
    read_request,
    responding_with,
    server,
)

from dovetail.net import http_client
from dovetail.net.http_client import ClientRequest, ConnectionGroup, Endpoint, fetch, send_request
from dovetail_model import DovetailError, EngineTimeout, EngineUnavailable

RESPONSES = [
    ("length", [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"], b"hello"),
    ("chunked", [CHUNKED, chunk(b"he"), chunk(b"llo"), b"0\r\n\r\n"], b"hello"),
    ("bytes", [bytes([b]) for b in CHUNKED + chunk(b"hello") + b"0\r\n\r\n"], b"hello"),
    ("trailer", [CHUNKED, chunk(b"hello"), b"0\r\nx: y\r\n\r\n"], b"hello"),
    ("until closed", [b"HTTP/1.0 200 OK\r\n\r\nhel", b"lo"], b"hello"),
    ("continue", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
]


@pytest.mark.parametrize("request_", [POST, GET], ids=["POST", "GET"])
@pytest.mark.parametrize(
    ("pieces", "body"), [a[1:] for a in RESPONSES], ids=[a[0] for a in RESPONSES]
)
def test_body_framings(request_: ClientRequest, pieces: list[bytes], body: bytes) -> None:
    async def main() -> tuple[int, bytes]:
        async with server(responding_with(*pieces)) as endpoint:
            return await fetch(endpoint, request_)

    assert asyncio.run(main()) in [(200, body), (204, body)]


def test_request_bytes() -> None:
    seen: list[tuple[str, bytes]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(b"HTTP/1.1 418 Teapot\r\nContent-Length: 0\r\n\r\n")

    async def main() -> None:
        async with server(handle) as endpoint:
            big = ClientRequest("POST", "/big", b"x" * 5_000_000, {"x-extra": "1"})
            assert (await fetch(endpoint, big))[0] == 418
            assert (await fetch(endpoint, ClientRequest("GET", "/small")))[0] == 418

    asyncio.run(main())
    (head, body), (small, nothing) = seen
    assert head.startswith("post /big http/1.1\r\n")
    assert "authorization: bearer k\r\n" in head
    assert "x-extra: 1\r\n" in head
    assert "content-type: application/json\r\n" in head
    assert len(body) == 5_000_000
    assert "content-length" not in small
    assert nothing == b""


def test_leaving_the_block_closes_the_connection() -> None:
    async def main() -> None:
        gone = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(CHUNKED + chunk(b"data: 1\n\n"))
            assert await reader.read() == b""
            gone.set()

        async with server(handle) as endpoint:
            async with send_request(endpoint, POST) as reply:
                assert await anext(reply.iter_chunks()) == b"data: 1\n\n"
            await gone.wait()

    asyncio.run(main())


def test_error_before_the_body_is_read() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        while await reader.read(65536):  # the server reads the rest of the body
            pass

    async def main() -> tuple[int, bytes]:
        async with server(handle) as endpoint:
            return await fetch(endpoint, ClientRequest("POST", "/", b"x" * 3_000_000))

    assert asyncio.run(main()) == (413, b"no")


@pytest.mark.parametrize(("pieces", "kind", "words"), [f[1:] for f in FAULTS])
def test_faulty_responses(pieces: list[bytes], kind: type[DovetailError], words: str) -> None:
    async def main() -> None:
        async with server(responding_with(*pieces)) as endpoint:
            await fetch(endpoint, POST)

    with pytest.raises(kind, match=words):
        asyncio.run(main())


@pytest.mark.parametrize("pieces", [[], [CHUNKED, chunk(b"a")]])
def test_read_timeout(pieces: list[bytes]) -> None:
    async def main() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await responding_with(*pieces)(reader, writer)
            await reader.read()

        async with server(handle) as endpoint:
            await fetch(endpoint, SHORT)

    with pytest.raises(EngineTimeout, match=r"sent no data for 0\.5 s"):
        asyncio.run(main())


def test_slow_reader_does_not_cause_a_read_timeout() -> None:
    async def main() -> list[bytes]:
        more = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(CHUNKED + chunk(b"a"))
            await more.wait()
            writer.write(chunk(b"b") + b"0\r\n\r\n")

        async with server(handle) as endpoint, send_request(endpoint, SHORT) as reply:
            pieces = []
            async for piece in reply.iter_chunks():
                pieces.append(piece)
                if not more.is_set():
                    await asyncio.sleep(2 * SHORT.timeouts.read)  # the consumer is slow
                    more.set()
            return pieces

    assert asyncio.run(main()) == [b"a", b"b"]


def test_endless_response_is_aborted() -> None:
    async def main() -> None:
        endless = [CHUNKED, *(chunk(b"x" * 65536) for _ in range(64))]
        async with (
            server(responding_with(*endless)) as endpoint,
            send_request(endpoint, POST) as response,
        ):
            with pytest.raises(EngineUnavailable, match="larger than 1 MiB"):
                await response.read(1 << 20)

    asyncio.run(main())


def test_unknown_host() -> None:
    with pytest.raises(EngineUnavailable, match="host not found"):
        asyncio.run(fetch(Endpoint("no-such-host.invalid", 1), POST))


def test_tls_to_a_plain_server_fails() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def main() -> None:
        async with server(refuse) as endpoint:
            with pytest.raises(EngineUnavailable, match=r"\([A-Z_]+\)"):
                await fetch(replace(endpoint, tls=True), POST)

    asyncio.run(main())


def test_connection_refused(tmp_path: Path) -> None:
    for endpoint in (Endpoint("127.0.0.1", 9), Endpoint(socket=str(tmp_path / "none.sock"))):
        with pytest.raises(EngineUnavailable, match=f"no connection to {endpoint}"):
            asyncio.run(fetch(endpoint, POST))


def test_header_with_a_line_break_is_rejected() -> None:
    async def main() -> None:
        async with server(responding_with()) as endpoint:
            await fetch(endpoint, ClientRequest("GET", "/", headers={"x": "a\r\nb: c"}))

    with pytest.raises(EngineUnavailable, match="HTTP does not allow"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://engine:8000", Endpoint("engine", 8000)),
        ("http://engine:8000/v2/", Endpoint("engine", 8000, base="/v2")),
        ("https://engine", Endpoint("engine", 443, tls=True)),
        ("http://[::1]:80", Endpoint("::1", 80)),
        ("unix:///run/e.sock", Endpoint(socket="/run/e.sock")),
    ],
)
def test_valid_urls(url: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(url) == endpoint
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize("url", ["engine:8000", "ftp://engine", "http://", "unix://", ""])
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="expected an http://"):
        Endpoint.parse(url)


def test_keys_are_not_in_the_repr() -> None:
    endpoint = Endpoint(headers={"authorization": "Bearer secret"})
    assert "secret" not in f"{endpoint} {endpoint!r}"


@pytest.mark.parametrize("begun", [b"", CHUNKED + chunk(b"data: a\n\n")])
def test_connections_are_aborted_before_and_after_the_head(begun: bytes) -> None:
    async def main() -> None:
        connections = ConnectionGroup()
        received = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(begun)
            received.set()
            await reader.read()

        async with server(silent) as endpoint:

            async def fetch_response() -> None:
                async with send_request(endpoint, ClientRequest("GET", "/"), connections) as reply:
                    await reply.read()

            task = asyncio.create_task(fetch_response())
            await received.wait()
            connections.abort_all()
            with pytest.raises(EngineUnavailable):
                await task

    asyncio.run(main())


SHORT_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class CountingServer:
    """Sends each request the same reply, and counts connections and requests.

    `max_requests` per connection; then the server closes it without a notice.
    """

    def __init__(self, reply: bytes = SHORT_REPLY, max_requests: int = 100) -> None:
        self.reply, self.max_requests = reply, max_requests
        self.connections = self.requests = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the client closed
            for _ in range(self.max_requests):
                await read_request(reader)
                self.requests += 1
                writer.write(self.reply)


async def fetch_all(endpoint: Endpoint, connections: ConnectionGroup, times: int) -> list[bytes]:
    bodies = []
    for _ in range(times):
        async with send_request(endpoint, POST, connections) as response:
            bodies.append(await response.read())
    return bodies


def test_connection_with_a_complete_response_is_reused() -> None:
    async def main() -> CountingServer:
        counting, connections = CountingServer(), ConnectionGroup()
        async with server(counting.handle) as endpoint:
            assert await fetch_all(endpoint, connections, 5) == [b"ok"] * 5
            connections.abort_all()
            assert await fetch_all(endpoint, connections, 1) == [b"ok"]
            connections.abort_all()
        return counting

    found = asyncio.run(main())
    assert (found.connections, found.requests) == (2, 6)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        SHORT_REPLY + b"more",
        SHORT_REPLY + SHORT_REPLY,
    ],
    ids=["close", "HTTP/1.0", "more data", "second response"],
)
def test_connection_that_cannot_be_reused_is_closed(reply: bytes) -> None:
    async def main() -> CountingServer:
        counting, connections = CountingServer(reply), ConnectionGroup()
        async with server(counting.handle) as endpoint:
            assert await fetch_all(endpoint, connections, 3) == [b"ok"] * 3
            connections.abort_all()
        return counting

    assert asyncio.run(main()).connections == 3


def test_response_that_is_not_read_to_its_end_closes_the_connection() -> None:
    async def main() -> int:
        counting, connections = CountingServer(CHUNKED + chunk(b"data")), ConnectionGroup()
        async with server(counting.handle) as endpoint:
            for _ in range(3):
                async with send_request(endpoint, POST, connections) as response:
                    assert response.status == 200
        return counting.connections

    assert asyncio.run(main()) == 3


@pytest.mark.parametrize(("end", "connections"), [(b"0\r\n\r\n", 1), (b"", 3), (b"zz\r\n", 3)])
def test_connection_is_reused_after_a_rest_that_is_skipped(end: bytes, connections: int) -> None:
    """If the rest arrives and is valid."""

    async def main() -> int:
        group, opened, left = ConnectionGroup(), 0, asyncio.Queue[None]()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened
            opened += 1
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await read_request(reader)
                    writer.write(CHUNKED + chunk(b"last"))
                    await left.get()
                    writer.write(end)

        async with server(handle) as endpoint:
            for _ in range(3):
                async with send_request(endpoint, POST, group) as response:
                    assert await anext(response.iter_chunks()) == b"last"
                    response.skip_rest()
                left.put_nowait(None)
                # Until the end has arrived.
                while end and group._idle and not group._idle[0].can_be_reused:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            group.abort_all()
        return opened

    assert asyncio.run(main()) == connections


def test_request_is_repeated_if_the_server_has_closed_an_idle_connection() -> None:
    async def main() -> CountingServer:
        counting, connections = CountingServer(max_requests=1), ConnectionGroup()
        async with server(counting.handle) as endpoint:
            assert await fetch_all(endpoint, connections, 20) == [b"ok"] * 20
            connections.abort_all()
        return counting

    found = asyncio.run(main())
    assert (found.connections, found.requests) == (20, 20)


def test_idle_connections_are_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "IDLE_SECONDS", 0.01)

    async def main() -> CountingServer:
        counting, connections = CountingServer(), ConnectionGroup()
        async with server(counting.handle) as endpoint:
            for _ in range(2):
                await fetch_all(endpoint, connections, 1)
                await asyncio.sleep(0.1)
                assert not connections._idle
        return counting

    assert asyncio.run(main()).connections == 2


def test_requests_at_the_same_time_have_their_own_connections() -> None:
    async def main() -> CountingServer:
        counting, connections = CountingServer(), ConnectionGroup(max_idle=2)
        async with server(counting.handle) as endpoint:
            for _ in range(3):
                await asyncio.gather(*(fetch_all(endpoint, connections, 1) for _ in range(5)))
            connections.abort_all()
        return counting

    assert asyncio.run(main()).connections == 5 + 3 + 3
