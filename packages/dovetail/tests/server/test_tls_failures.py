"""Failed TLS handshakes, with both event loops: which are logged and counted."""

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from certificates import Authority
from http_fixture import Stage, StageEngine, head, read_reply, service, tiny_model

from dovetail.http.app import App
from dovetail.http.options import HttpOptions
from dovetail.net.client_address import ClientAddressResolver
from dovetail.net.http_protocol import DEFAULT_TIMEOUTS, ConnectionTimeouts
from dovetail.net.tls import TlsCertificate
from dovetail.server import http_server as handshake
from dovetail.server.http_server import classify_failure, create_server

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [
    asyncio.new_event_loop,
    uvloop.new_event_loop,
]
both = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
Lines = list[dict[str, Any]]


@asynccontextmanager
async def secured(
    folder: Path, timeouts: ConnectionTimeouts = DEFAULT_TIMEOUTS, **options: Any
) -> AsyncIterator[tuple[Stage, Authority]]:
    authority = Authority(folder)
    issued = authority.issue("server")
    app = App(service()[0], HttpOptions(**options))
    place = socket.create_server(("127.0.0.1", 0))
    running = create_server(
        app,
        certificate=TlsCertificate(issued.cert, issued.key),
        drain=app.draining,
        metrics=app.metrics,
        client_addresses=app.options.client_addresses,
        timeouts=timeouts,
    )
    task = asyncio.create_task(running.serve([place]))
    while not running.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    engine = StageEngine(tiny_model())
    try:
        yield Stage(app, engine, place.getsockname()[1], running, asyncio.Queue()), authority
    finally:
        running.should_exit = True
        await task


def play(
    loop: Callable[[], asyncio.AbstractEventLoop], scene: Callable[[], Awaitable[None]]
) -> None:
    async def timed() -> None:
        async with asyncio.timeout(60):
            await scene()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(timed())


@contextmanager
def failures(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    found: Lines = []
    yield found
    found += [
        vars(one)["fields"] for one in caplog.records if one.message == "tls_handshake_failed"
    ]
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


async def failed(stage: Stage, reason: str, times: int = 1) -> None:
    """Wait until so many handshakes have failed for this reason."""
    counted = "dovetail_tls_failures_total"
    while stage.metric(counted, reason=reason) < times:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.001)


async def request_status(stage: Stage, trust: ssl.SSLContext) -> int:
    reader, writer = await stage.connect(ssl=trust, server_hostname="localhost")
    writer.write(head("GET", "/v1/models", 0))
    status = (await read_reply(reader)).status
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return status


async def send_raw(stage: Stage, sent: bytes) -> bytes:
    """Send bytes that are not TLS. Returns everything that is received."""
    reader, writer = await stage.connect()
    writer.write(sent)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@both
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_each_failure_is_logged_and_counted(
    loop: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with secured(tmp_path) as (stage, authority):
            await send_raw(stage, b"GET /?secret HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await failed(stage, "plain_http")
            await send_raw(stage, b"SSH-2.0-some\r\n")
            await failed(stage, "not_tls")
            old = authority.trust()
            old.set_ciphers("ALL:@SECLEVEL=0")
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
            with pytest.raises(ConnectionError):
                await request_status(stage, old)
            await failed(stage, "protocol")
            weak = authority.trust()
            weak.maximum_version = ssl.TLSVersion.TLSv1_2
            weak.set_ciphers("AES128-SHA")
            with pytest.raises(ConnectionError):
                await request_status(stage, weak)
            await failed(stage, "cipher")
            await asyncio.to_thread(_distrusts, stage.port)
            await failed(stage, "untrusted")
            assert await request_status(stage, authority.trust()) == 200

    with failures(caplog) as lines:
        play(loop, scene)
    reasons = [(line["peer"], line["reason"]) for line in lines]
    expected = ["plain_http", "not_tls", "protocol", "cipher", "untrusted"]
    assert reasons == [("127.0.0.1", reason) for reason in expected]
    assert all(line["detail"].isupper() for line in lines)
    assert "secret" not in caplog.text


@both
def test_aborted_and_silent_handshakes(
    loop: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Load balancers probe the port every few seconds, which is not logged."""
    hello = _client_hello()

    async def scene() -> None:
        async with secured(tmp_path) as (stage, authority):
            with socket.create_connection(("127.0.0.1", stage.port)):
                pass
            await failed(stage, "unused", 1)
            with socket.create_connection(("127.0.0.1", stage.port)) as rude:
                rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await failed(stage, "unused", 2)
            reader, writer = await stage.connect()
            writer.write(hello)
            assert await reader.read(1)
            writer.close()
            await failed(stage, "hung_up")
            assert await request_status(stage, authority.trust()) == 200
        async with secured(tmp_path, ConnectionTimeouts(header_seconds=0.05)) as (stage, _):
            assert await send_raw(stage, b"") == b""
            await failed(stage, "unused", 1)
            # On a busy machine, the server may give up before it has read something.
            while not stage.metric("dovetail_tls_failures_total", reason="timeout"):
                assert await send_raw(stage, hello[:20]) == b""

    with failures(caplog) as lines:
        play(loop, scene)
    assert lines == [
        {"peer": "127.0.0.1", "reason": "hung_up"},
        {"peer": "127.0.0.1", "reason": "timeout"},
    ]


def test_port_scan_does_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with secured(tmp_path, client_addresses=ClientAddressResolver(enabled=False)) as (
            stage,
            _,
        ):
            for _ in range(70):
                await send_raw(stage, b"GET / HTTP/1.1\r\n\r\n")
            await failed(stage, "plain_http", 70)

    with failures(caplog) as lines:
        play(uvloop.new_event_loop, scene)
    assert lines == [{"reason": "plain_http", "detail": "HTTP_REQUEST"}] * 60


@both
def test_handshakes_count_as_connections(
    loop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that only start handshakes must not take the files that engines and stores need."""
    monkeypatch.setattr(handshake, "max_connections", lambda: 2)

    async def scene() -> None:
        async with secured(tmp_path) as (stage, authority):
            silent = [await stage.connect() for _ in range(3)]
            reader, refused = await stage.connect()
            assert await reader.read() == b""
            refused.close()
            assert stage.metric("dovetail_refused_connections_total", reason="connections") == 1
            for _, writer in silent:
                writer.close()
            await failed(stage, "unused", 3)
            assert await request_status(stage, authority.trust()) == 200

    play(loop, scene)


@both
def test_stopping_server_does_not_wait_for_handshakes(loop: Any, tmp_path: Path) -> None:
    async def scene() -> None:
        async with secured(tmp_path) as (stage, authority):
            reader, writer = await stage.connect()
            half, sent = await stage.connect()
            sent.write(_client_hello()[:20])
            assert (
                await request_status(stage, authority.trust()) == 200
            )  # the other connections are accepted by now
        for one in (reader, half):
            with suppress(ConnectionResetError):
                assert await one.read() == b""
        for other in (writer, sent):
            other.close()

    play(loop, scene)


def test_reasons_are_a_closed_set() -> None:
    unknown = ssl.SSLError(1, "something new")
    unknown.reason = "SOMETHING_NEW"
    assert classify_failure(unknown) == ("other", "SOMETHING_NEW")
    assert classify_failure(ssl.SSLError(1, "nothing")) == ("other", None)
    assert classify_failure(OSError()) == ("hung_up", None)


def _distrusts(port: int) -> None:
    """A client that does not trust our authority, and sends an alert."""
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")


def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
