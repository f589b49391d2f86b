"""Ambiguous requests, which two parsers could read differently, and bytes that are not HTTP."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from abuse_connections import (
    BODY,
    CHUNKED,
    GARBAGE,
    LENGTH,
    SMUGGLING,
    Shape,
    chunks,
    connections,
    get,
    post,
    until,
    wire_to,
)
from http_fixture import NAME, Stage, run, serving

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http.options import HttpOptions
from dovetail.net import http_protocol

STREAMED = b'{"model":"%b","stream":true,"messages":[{"role":"user","content":"Hi"}]}'
STREAM = post(b"content-length: %d\r\n" % len(STREAMED % NAME.encode()), STREAMED % NAME.encode())


@pytest.mark.parametrize("shapes", [SMUGGLING, GARBAGE], ids=["smuggling", "garbage"])
def test_ambiguous_requests_are_rejected_and_close_the_connection(
    shapes: tuple[Shape, ...],
) -> None:
    """A request that is smuggled behind it gets no response."""

    async def scene() -> None:
        async with serving() as stage:
            for shape in shapes:
                async with await wire_to(stage, shape.sent + get(b"/hidden")) as wire:
                    assert (await wire.reply()).status == shape.status, shape.name
                    if shape.status == 400:
                        assert await wire.rest() == b"", shape.name
            assert not stage.engine.requests
            assert (await stage.request("GET", "/live")).status == 200

    run(scene)


H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n"
SOCKET = (
    b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
CLEAR = {
    "a length": post(LENGTH),
    "one chunk": post(CHUNKED, chunks(BODY)),
    "chunks of a byte": post(CHUNKED, chunks(*(BODY[at : at + 1] for at in range(len(BODY))))),
    "capitals": post(b"Transfer-Encoding:\tCHUNKED\r\n", chunks(BODY)),
    "an extension": post(CHUNKED, b"%x;name=value\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    "asks for h2c": post(H2C + LENGTH),
}


def test_unambiguous_requests_get_a_response() -> None:
    """Java's client offers an upgrade to HTTP/2 with its first request, together with the body."""

    async def scene() -> None:
        async with serving() as stage:
            for name, sent in CLEAR.items():
                async with await wire_to(stage, sent + get()) as wire:
                    reply = await wire.reply()
                    assert reply.status == 200, name
                    assert reply.json["choices"][0]["message"]["content"] == "Hello."
                    assert (await wire.reply()).json == {"status": "live"}

    run(scene)


def test_host_is_optional_in_http_1_0() -> None:
    async def scene() -> None:
        async with serving() as stage:
            async with await wire_to(stage, b"GET /live HTTP/1.0\r\n\r\n") as wire:
                assert (await wire.reply()).status == 200
            two_hosts = b"GET /live HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n"
            async with await wire_to(stage, two_hosts) as wire:
                assert (await wire.reply()).status == 400

    run(scene)


def test_transfer_codings_need_http_1_1() -> None:
    async def scene() -> None:
        async with serving() as stage:
            sent = post(CHUNKED, chunks(BODY)).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
            async with await wire_to(stage, sent + get()) as wire:
                assert (await wire.reply()).status == 400
                assert await wire.rest() == b""

    run(scene)


def test_unknown_expectations_are_rejected() -> None:
    async def scene() -> None:
        async with serving() as stage:
            async with await wire_to(stage, post(b"expect: 200-magic\r\n" + LENGTH)) as wire:
                assert (await wire.reply()).status == 417
                assert await wire.rest() == b""
            async with await wire_to(stage, post(b"Expect: 100-Continue\r\n" + LENGTH)) as wire:
                assert (await wire.reply()).status in (100, 200)

    run(scene)


def test_encoded_slashes_do_not_separate_segments() -> None:
    async def scene() -> None:
        async with serving() as stage:
            for path, status in (
                ("/v1%2fmodels", 404),
                ("/v1%2Fmodels", 404),
                ("/v1/m%6fdels", 200),
                (f"/v1/models/{NAME}", 200),
                (f"/v1/models/{NAME.replace('/', '%2f')}", 200),
                (f"/v1/models/{NAME.replace('/', '%2F')}", 200),
                ("/v1/responses/resp_1%2Finput_items", 404),
            ):
                assert (await stage.request("GET", path)).status == status, path

    run(scene)


@pytest.mark.parametrize("handshake", [get(b"/v1/responses", SOCKET), post(SOCKET + LENGTH, b"")])
def test_data_after_a_rejected_upgrade_is_ignored(
    handshake: bytes,
) -> None:
    """The data could be the body of the request, so it must not be parsed as another request."""

    async def scene() -> None:
        options = HttpOptions(websockets=False)
        async with serving(options) as stage, await wire_to(stage) as wire:
            await until(lambda: bool(connections(stage)))
            (there,) = connections(stage)
            there.data_received(handshake)  # in two writes, one right after the other
            there.data_received(get(b"/hidden"))
            assert (await wire.reply()).headers["connection"] == "close"
            assert await wire.rest() == b""

    run(scene)


@pytest.mark.parametrize(
    ("line", "count"),
    [(b"a: b\r\n", http_protocol.MAX_HEADERS), (b"a: " + b"b" * 10_000 + b"\r\n", 7)],
)
def test_headers_are_bounded_in_one_packet_too(line: bytes, count: int) -> None:
    async def scene() -> None:
        async with serving() as stage, await wire_to(stage) as wire:
            await until(lambda: bool(connections(stage)))
            (there,) = connections(stage)
            there.data_received(get(headers=line * count))
            assert (await wire.reply()).status == 431
            assert await wire.rest() == b""
            fewer = line * (count - 2)
            async with await wire_to(stage, get(headers=fewer)) as sound:
                assert (await sound.reply()).status == 200

    run(scene)


def test_trailers_are_not_headers() -> None:
    async def scene() -> None:
        async with serving() as stage:
            hidden = b"x-request-id: hidden\r\ncontent-encoding: gzip\r\n"
            async with await wire_to(stage, post(CHUNKED, chunks(BODY, trailers=hidden))) as wire:
                reply = await wire.reply()
                assert reply.status == 200
                assert reply.headers["x-request-id"] != "hidden"

    run(scene)


@pytest.mark.parametrize("endless", [b"x-more: of the same\r\n", b"x" * 100])
def test_trailers_are_bounded(endless: bytes) -> None:
    async def scene() -> None:
        async with serving() as stage:
            begun = post(CHUNKED, chunks(BODY)[:-2])
            async with await wire_to(stage, begun) as wire:
                for _ in range(6 * http_protocol.MAX_HEADER_BYTES // len(endless)):
                    wire.writer.write(endless)
                assert (await wire.reply()).status == 431
                assert await wire.rest() == b""

    run(scene)


def test_pipelined_responses_come_in_order() -> None:
    async def scene() -> None:
        async with serving() as stage:
            count = http_protocol.MAX_PIPELINED_REQUESTS + 1
            async with await wire_to(stage, b"".join(_numbered(at) for at in range(count))) as wire:
                ids = [(await wire.reply()).headers["x-request-id"] for _ in range(count)]
                assert ids == [f"r{at}" for at in range(count)]

    run(scene)


def test_pipelined_requests_are_bounded() -> None:
    """Of thousands in one packet, queued ones are dropped and the running one gets its response."""

    async def scene() -> None:
        many = b"".join(_numbered(at) for at in range(3000))
        async with serving() as stage, await wire_to(stage, many) as wire:
            first = await wire.reply()
            assert (first.status, first.headers["connection"]) == (200, "close")
            assert await wire.rest() == b""

    run(scene)


def test_garbage_after_a_request_does_not_affect_its_response() -> None:
    async def scene() -> None:
        async with serving() as stage:
            going = _waits(stage)
            async with await wire_to(stage, STREAM) as wire:
                await stage.engine.began.wait()
                wire.writer.write(b"\x00\x01 garbage")
                await asyncio.sleep(0)
                going.set()
                reply = await wire.reply()
                assert reply.status == 200
                assert reply.body.endswith(b"data: [DONE]\n\n")
                assert await wire.rest() == b""

    run(scene)


def test_disconnect_with_queued_requests_cancels_the_running_one() -> None:
    async def scene() -> None:
        async with serving() as stage:
            going = _waits(stage, endless=True)
            async with await wire_to(stage, STREAM) as wire:
                await stage.engine.began.wait()
                wire.writer.write(STREAM)
                await until(lambda: any(one.pipeline for one in connections(stage)))
            going.set()
            await stage.engine.closed.wait()
            assert (await stage.ended.get())["disconnected"] is True
            assert len(stage.engine.requests) == 1

    run(scene)


def test_body_with_invalid_chunks_is_rejected() -> None:
    async def scene() -> None:
        begun = post(CHUNKED, b"5\r\nhello\r\n")
        async with serving() as stage, await wire_to(stage, begun) as wire:
            await until(lambda: any(one.cycle for one in connections(stage)))
            wire.writer.write(b"no size\r\n")
            assert (await wire.reply()).status == 400
            assert await wire.rest() == b""
            assert (await stage.ended.get())["disconnected"] is True

    run(scene)


def _numbered(at: int) -> bytes:
    return get(headers=b"x-request-id: r%d\r\n" % at)


def _waits(stage: Stage, *, endless: bool = False) -> asyncio.Event:
    """Generate no token until the event is set."""
    released = asyncio.Event()
    ids = stage.engine.tokenizer.encode("Hello.")

    async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        await released.wait()
        while endless:
            yield TokenDelta(ids)
            await asyncio.sleep(0)
        yield TokenDelta([*ids, stage.engine.stop_id], finish="stop")

    stage.engine.plan = play
    return released
