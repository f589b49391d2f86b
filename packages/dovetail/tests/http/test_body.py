"""Request bodies: all content encodings, malformed, too large, and decompression bombs."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable, Iterator

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from http_fixture import NAME, Reply, Stage, head, read_reply, run, serving
from hypothesis import given
from hypothesis import strategies as st

from dovetail.http.body import read_body
from dovetail.http.errors import RequestTimeout
from dovetail.http.exchange import ApiExchange
from dovetail.http.memory import release_memory
from dovetail.http.options import HttpOptions
from dovetail.net.exchange import ClientDisconnected, Message
from dovetail_model import DovetailError, RequestTooLarge

Compress = Callable[[bytes], bytes]

BODY = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "Hi"}]}).encode()
LIMIT = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def two_members(data: bytes) -> bytes:
    return gzip.compress(data[:10]) + gzip.compress(data[10:])


def two_frames(data: bytes) -> bytes:
    return zstandard.compress(data[:10]) + zstandard.compress(data[10:])


CODINGS: list[tuple[str, Compress]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("gzip", two_members),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("br", brotli.compress),
    ("zstd", zstandard.compress),
    ("zstd", two_frames),
    ("ZSTD", zstandard.compress),
    ("identity", bytes),
    ("gzip, zstd", lambda data: zstandard.compress(gzip.compress(data))),
    ("identity, br ,gzip", lambda data: gzip.compress(brotli.compress(data))),
]


async def chat(stage: Stage, body: bytes, **headers: str) -> Reply:
    return await stage.request("POST", "/v1/chat/completions", body, **headers)


@pytest.mark.parametrize(("coding", "compress"), CODINGS)
def test_every_encoding_is_decoded(coding: str, compress: Compress) -> None:
    async def scene() -> None:
        async with serving() as stage:
            reply = await chat(stage, compress(BODY), content_encoding=coding)
            assert reply.status == 200
            assert reply.json["choices"][0]["message"]["content"] == "Hello."

    run(scene)


@pytest.mark.parametrize(("coding", "compress"), CODINGS[:8])
def test_decompression_bomb_is_rejected(coding: str, compress: Compress) -> None:
    async def scene() -> None:
        async with serving(HttpOptions(max_body_bytes=LIMIT)) as stage:
            bomb = compress(b" " * (64 * LIMIT))
            assert len(bomb) < LIMIT
            reply = await chat(stage, bomb, content_encoding=coding)
            assert reply.status == 413
            assert reply.json["error"]["code"] == "request_too_large"

    run(scene)


def test_nested_decompression_bomb_is_rejected() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(max_body_bytes=LIMIT)) as stage:
            bomb = gzip.compress(gzip.compress(b" " * (512 * LIMIT)))
            assert (await chat(stage, bomb, content_encoding="gzip, gzip")).status == 413

    run(scene)


def test_gzip_body_with_too_many_members_is_rejected() -> None:
    """Each member of a gzip body costs a copy of the rest: thousands of them cost seconds."""

    async def scene() -> None:
        async with serving() as stage:
            reply = await chat(stage, gzip.compress(b"") * 50_000, content_encoding="gzip")
            assert reply.status == 400
            assert "more than 16 members" in reply.json["error"]["message"]

    run(scene)


@pytest.mark.parametrize(("coding", "compress"), CODINGS[:8])
@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: b"\x00" + data])
def test_corrupt_compressed_body_gets_400(
    coding: str, compress: Compress, damage: Compress
) -> None:
    async def scene() -> None:
        async with serving() as stage:
            reply = await chat(stage, damage(compress(BODY)), content_encoding=coding)
            assert reply.status == 400
            assert coding in reply.json["error"]["message"]

    run(scene)


@pytest.mark.parametrize("coding", ["compress", "gzip, zip", "gzip,gzip,gzip,gzip,gzip"])
def test_unknown_encoding_is_rejected(coding: str) -> None:
    async def scene() -> None:
        async with serving() as stage:
            reply = await chat(stage, BODY, content_encoding=coding)
            assert reply.status == 415
            assert reply.json["error"]["type"] == "invalid_request_error"

    run(scene)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"model": 1}', b"null"])
def test_malformed_body_gets_400(path: str, body: bytes) -> None:
    async def scene() -> None:
        async with serving() as stage:
            reply = await stage.request("POST", path, body)
            assert reply.status == 400
            assert reply.json["error"]["type"] == "invalid_request_error"

    run(scene)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/messages", "request_too_large"), ("/v1/chat/completions", "invalid_request_error")],
)
def test_body_over_the_limit_is_rejected_before_it_arrives(path: str, kind: str) -> None:
    async def scene() -> None:
        async with serving(HttpOptions(max_body_bytes=LIMIT)) as stage:
            reader, writer = await stage.connect()
            writer.write(head("POST", path, LIMIT + 1))
            reply = await read_reply(reader)
            writer.close()
            assert reply.status == 413
            assert reply.json["error"]["type"] == kind

    run(scene)


def test_body_without_content_length_is_bounded() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(max_body_bytes=LIMIT)) as stage:
            reader, writer = await stage.connect()
            lines = b"host: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(b"POST /v1/messages HTTP/1.1\r\n" + lines)
            piece = b" " * (LIMIT // 4)
            for _ in range(6):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            reply = await read_reply(reader)
            writer.close()
            assert reply.status == 413

    run(scene)


def body_of(exchange: ApiExchange, limit: int = 1000, seconds: float = 10) -> bytes:
    """Read the body, and finish its request."""
    try:
        return asyncio.run(read_body(exchange, limit, seconds))
    finally:
        release_memory(exchange)


def exchange(messages: Iterator[Message], coding: str = "") -> ApiExchange:
    async def receive() -> Message:
        for message in messages:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError(message)

    headers = [(b"content-encoding", coding.encode())]
    scope = {"method": "POST", "path": "/", "headers": headers}
    return ApiExchange(scope, receive, send)


def pieces(body: bytes, size: int) -> Iterator[Message]:
    for at in range(0, max(1, len(body)), size):
        yield {
            "type": "http.request",
            "body": body[at : at + size],
            "more_body": at + size < len(body),
        }


@given(
    data=st.binary(max_size=2000).map(lambda seed: seed * 3),
    how=st.lists(st.sampled_from([0, 2, 3, 4, 5, 6, 7]), max_size=3),
    size=st.integers(1, 700),
)
def test_any_chain_of_encodings_in_any_chunks_is_decoded(
    data: bytes, how: list[int], size: int
) -> None:
    body, names = data, []
    for at in how:
        name, compress = CODINGS[at]
        body = compress(body)
        names.append(name)
    assert body_of(exchange(pieces(body, size), ",".join(names)), LIMIT) == data


@given(data=st.binary(max_size=300), coding=st.sampled_from(["gzip", "deflate", "br", "zstd"]))
def test_random_bytes_are_rejected_or_decoded(data: bytes, coding: str) -> None:
    try:
        found = body_of(exchange(pieces(data, 100), coding))
    except DovetailError:
        return
    assert len(found) <= 1000


def test_disconnect_while_sending_the_body() -> None:
    gone: list[Message] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    with pytest.raises(ClientDisconnected):
        body_of(exchange(iter(gone)))


def test_endless_body_times_out() -> None:
    with pytest.raises(RequestTimeout):
        body_of(exchange(iter(())), seconds=0.01)


def test_body_of_exactly_the_limit_is_allowed() -> None:
    body = b"x" * 1000
    assert body_of(exchange(pieces(body, 10))) == body
    with pytest.raises(RequestTooLarge):
        body_of(exchange(pieces(body + b"x", 10)))
