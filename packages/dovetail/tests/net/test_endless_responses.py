"""Engines that send data without end: bounded by errors or by backpressure."""

import asyncio
from collections.abc import Iterable
from itertools import repeat
from typing import Protocol

import pytest
from raw_http_server import CHUNKED, POST, chunk, read_request, server

from dovetail.engines.engine import TokenDelta
from dovetail.engines.openai.response_reader import UpstreamResponseReader
from dovetail.engines.openai.tool_calls import ToolNameRestorer
from dovetail.engines.token_stream import TokenStreamReader
from dovetail.net import client_connection
from dovetail.net.client_connection import MAX_UNREAD_BYTES, SseDataReader
from dovetail.net.http_client import send_request
from dovetail.net.response_parser import MAX_HEAD_BYTES, ResponseParser
from dovetail_model import EngineUnavailable
from dovetail_protocols import ChatReader, ResponsesReader, ToolNames

PIECE = b"x" * 65536


class Sink:
    def push(self, delta: TokenDelta) -> bool:
        return True

    async def drain(self) -> bool:
        return True


class Reader(Protocol):
    def feed(self, data: bytes, /) -> object: ...


def feed_all(reader: Reader, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        reader.feed(piece)


@pytest.fixture(autouse=True)
def small_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "MAX_EVENT_BYTES", 1 << 20)


@pytest.mark.parametrize("piece", [PIECE, b"data: " + PIECE, b"data: x\n", b"data: x\ny\n"])
def test_event_without_end_is_rejected(piece: bytes) -> None:
    reader = SseDataReader()
    with pytest.raises(EngineUnavailable, match="event of more than 1048576 bytes"):
        feed_all(reader, repeat(piece, 1 << 18))


@pytest.mark.parametrize("piece", [b": alive\n\n", b"data: x\n\n", b"event: a\ndata: x\r\n\r\n"])
def test_complete_events_are_not_limited_together(piece: bytes) -> None:
    reader = SseDataReader()
    for _ in range(1 << 17):
        reader.feed(piece[:3])
        reader.feed(piece[3:])


async def _send_endlessly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(CHUNKED + chunk(b"data: "))
    while not writer.is_closing():
        writer.write(chunk(PIECE))
        await writer.drain()


def test_line_without_end_fails_a_token_engine() -> None:
    """vLLM, SGLang and llama.cpp are read by the same class."""

    async def main() -> None:
        stream = TokenStreamReader(lambda payloads: None, Sink())
        async with (
            server(_send_endlessly) as endpoint,
            send_request(endpoint, POST) as response,
        ):
            with pytest.raises(EngineUnavailable, match="event of more than"):
                await response.stream_to(stream.push, stream.drain)

    asyncio.run(main())


@pytest.mark.parametrize("reader", [ChatReader, ResponsesReader])
def test_line_without_end_fails_an_upstream(reader: type[ChatReader | ResponsesReader]) -> None:
    upstream = UpstreamResponseReader("upstream", reader(), ToolNameRestorer(ToolNames(())))
    with pytest.raises(EngineUnavailable, match="event of more than"):
        feed_all(upstream, repeat(b"data: " + PIECE, 1000))


@pytest.mark.parametrize("start", [CHUNKED + chunk(b"a") + b"0\r\nx: ", CHUNKED + b"1;x="])
def test_framing_without_end_is_rejected(start: bytes) -> None:
    """Trailers and chunk extensions are not a part of the body."""
    parser = ResponseParser()
    with pytest.raises(ValueError, match=r"larger than|exceeded|overflow|[Ii]nvalid"):
        feed_all(parser, (start, *repeat(b"y" * 4096, 2 * MAX_HEAD_BYTES // 4096)))


def test_chunk_headers_that_arrive_alone_are_not_limited() -> None:
    parser = ResponseParser()
    parser.feed(CHUNKED)
    for _ in range(MAX_HEAD_BYTES // 3):
        assert parser.feed(b"1\r\n") + parser.feed(b"a\r\n") == b"a"


def test_consumer_that_never_drains_bounds_memory() -> None:
    """An engine can fill the buffers of the kernel, and no more than that is read from it."""
    sent = 0

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(CHUNKED)
        while not writer.is_closing():
            writer.write(chunk(PIECE))
            await writer.drain()
            sent += len(PIECE)

    async def main() -> None:
        received = 0

        def push(data: bytes) -> bool:
            nonlocal received
            received += len(data)
            return False

        async def drain() -> bool:
            await asyncio.Event().wait()
            return True

        async with server(send) as endpoint, send_request(endpoint, POST) as response:
            stream = asyncio.create_task(response.stream_to(push, drain))
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(0.3)
            assert received <= MAX_UNREAD_BYTES + (1 << 18)  # at most one read of the event loop
            assert sent < 32 << 20  # the buffers of both sockets
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)

    asyncio.run(main())
