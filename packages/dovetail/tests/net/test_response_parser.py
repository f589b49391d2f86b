"""Streamed response bodies: each part is pushed in the call that receives it."""

import asyncio
from contextlib import suppress

import pytest
from raw_http_server import (
    CHUNKED,
    FAULTS,
    POST,
    SHORT,
    Handler,
    chunk,
    read_request,
    responding_with,
    server,
)

from dovetail.net.client_connection import MAX_UNREAD_BYTES, SseDataReader
from dovetail.net.http_client import ClientRequest, send_request
from dovetail_model import DovetailError, EngineTimeout


class Poured:
    """Accepts parts of a body, and requires `drain` after each of the given ones."""

    def __init__(self, full_after: frozenset[int] = frozenset(), wanted: int = 1 << 30) -> None:
        self.parts: list[bytes] = []
        self._full_after = full_after
        self._wanted = wanted
        self.waited = 0

    def take(self, data: bytes) -> bool:
        self.parts.append(data)
        return len(self.parts) not in self._full_after

    async def wait(self) -> bool:
        self.waited += 1
        await asyncio.sleep(0)
        return len(self.parts) < self._wanted


def pouring(handle: Handler, poured: Poured, call: ClientRequest = POST) -> None:
    async def main() -> None:
        async with server(handle) as endpoint, send_request(endpoint, call) as reply:
            await reply.stream_to(poured.take, poured.wait)

    asyncio.run(main())


@pytest.mark.parametrize("full_after", [[], [1], [1, 2, 3]])
def test_body_is_pushed_to_its_end(full_after: list[int]) -> None:
    poured = Poured(frozenset(full_after))
    pieces = [CHUNKED, *(chunk(b"%d " % n) for n in range(50)), b"0\r\n\r\n"]
    pouring(responding_with(*pieces), poured)
    assert b"".join(poured.parts).split() == [b"%d" % n for n in range(50)]
    assert poured.waited == len([at for at in full_after if at <= len(poured.parts)])


def test_data_that_arrived_with_the_head_is_pushed() -> None:
    poured = Poured()
    pouring(responding_with(CHUNKED + chunk(b"all of it") + b"0\r\n\r\n"), poured)
    assert poured.parts == [b"all of it"]


def test_large_data_that_arrived_with_the_head_is_pushed() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await responding_with(CHUNKED + chunk(b"x" * (2 * MAX_UNREAD_BYTES)))(reader, writer)
        writer.write(chunk(b"y") + b"0\r\n\r\n")

    async def main() -> None:
        async with server(handle) as endpoint, send_request(endpoint, POST) as reply:
            while not reply._connection._paused:  # noqa: ASYNC110 - no consumer reads yet
                await asyncio.sleep(0.001)
            await reply.stream_to(poured.take, poured.wait)

    poured = Poured()
    asyncio.run(main())
    assert b"".join(poured.parts) == b"x" * (2 * MAX_UNREAD_BYTES) + b"y"


def test_push_stops_when_drain_returns_false() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED)
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(chunk(b"more"))
                await writer.drain()
                await asyncio.sleep(0)

    poured = Poured(frozenset([3]), wanted=3)
    pouring(endless, poured)
    assert len(poured.parts) == 3


@pytest.mark.parametrize("ended", [b"", b"0\r\n\r\n"])
def test_consumer_error_is_raised_to_the_caller(ended: bytes) -> None:
    class Fussy(Poured):
        def take(self, data: bytes) -> bool:
            raise LookupError("not this one")

    with pytest.raises(LookupError, match="not this one"):
        pouring(responding_with(CHUNKED + chunk(b"a") + ended), Fussy())


@pytest.mark.parametrize(
    ("pieces", "kind", "words"), [f[1:] for f in FAULTS if f[1] and f[1][0] == CHUNKED]
)
def test_faulty_responses_while_streaming(
    pieces: list[bytes], kind: type[DovetailError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        pouring(responding_with(*pieces), Poured())


def test_read_timeout_while_streaming() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await responding_with(CHUNKED, chunk(b"a"))(reader, writer)
        await reader.read()

    poured = Poured()
    with pytest.raises(EngineTimeout, match=r"sent no data for 0\.5 s"):
        pouring(silent, poured, SHORT)
    assert poured.parts == [b"a"]


def test_full_consumer_does_not_cause_a_read_timeout() -> None:
    class Slow(Poured):
        async def wait(self) -> bool:
            await asyncio.sleep(2 * SHORT.timeouts.read)
            more.set()
            return await super().wait()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await responding_with(CHUNKED, chunk(b"a"))(reader, writer)
        await more.wait()
        writer.write(chunk(b"b") + b"0\r\n\r\n")

    more = asyncio.Event()
    poured = Slow(frozenset([1]))
    pouring(handle, poured, SHORT)
    assert b"".join(poured.parts) == b"ab"


def test_sse_data_is_extracted() -> None:
    sse = 'data: {"a":1}\n\n: alive\n\nevent: b\ndata: é漢\n\n'.encode()
    pieces = [CHUNKED, *(chunk(sse[n : n + 3]) for n in range(0, len(sse), 3)), b"0\r\n\r\n"]
    reader, found = SseDataReader(), list[bytes]()

    class Reading(Poured):
        def take(self, data: bytes) -> bool:
            found.extend(reader.feed(data))
            return True

    pouring(responding_with(*pieces), Reading())
    assert found == [b'{"a":1}', "é漢".encode()]
