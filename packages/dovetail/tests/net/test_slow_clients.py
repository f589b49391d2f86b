"""Clients that are slow on purpose, that never read, or that vanished without closing."""

import asyncio
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator

import pytest
from abuse_connections import BODY, CHUNKED, LENGTH, connections, get, post, until, wire_to
from http_fixture import NAME, Plan, Stage, run, serving

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http import memory
from dovetail.http.options import HttpOptions
from dovetail.net import http_protocol, open_files
from dovetail.net.http_protocol import ConnectionTimeouts

STREAMED = BODY.replace(b"{", b'{"stream":true,', 1)
_TCP_REPAIR = 19  # of Linux: a closed socket then disappears without a FIN
STREAM = post(b"content-length: %d\r\n" % len(STREAMED), STREAMED)


def test_header_sent_byte_by_byte_times_out() -> None:
    """Progress does not extend the timeout."""
    timeouts = ConnectionTimeouts(header_seconds=0.3)

    async def scene() -> None:
        async with serving(timeouts=timeouts) as stage, await wire_to(stage) as wire:
            drip = asyncio.create_task(_drip(wire.writer, b"GET / HTTP/1.1\r\nx-slow: ", b"x"))
            assert (await wire.reply()).status == 408
            assert await wire.rest() == b""
            drip.cancel()
            await until(lambda: not connections(stage))

    run(scene)


def test_empty_lines_do_not_keep_a_connection_open() -> None:
    timeouts = ConnectionTimeouts(header_seconds=1.0)

    async def scene() -> None:
        async with serving(timeouts=timeouts) as stage, await wire_to(stage, get()) as wire:
            assert (await wire.reply()).status == 200
            drip = asyncio.create_task(_drip(wire.writer, b"", b"\r\n"))
            assert (await wire.reply()).status == 408
            assert await wire.rest() == b""
            drip.cancel()

    run(scene)


@pytest.mark.parametrize(
    "headers", [b"content-length: 9999\r\n", CHUNKED], ids=["length", "chunks"]
)
@pytest.mark.parametrize(
    "path", [b"/v1/chat/completions", b"/v1/messages", b"/v1/responses", b"/v1/tokenize"]
)
def test_body_sent_byte_by_byte_times_out(path: bytes, headers: bytes) -> None:
    """The request gets its error in time, and the connection does not stay open for the rest."""
    timeouts = ConnectionTimeouts(body_linger_seconds=0.2)

    async def scene() -> None:
        async with (
            serving(HttpOptions(body_timeout=0.2), timeouts=timeouts) as stage,
            await wire_to(stage) as wire,
        ):
            piece = b"1\r\n \r\n" if headers == CHUNKED else b" "
            wire.writer.write(post(headers, b"", path=path))
            drip = asyncio.create_task(_drip(wire.writer, b"", piece))
            reply = await wire.reply()
            assert reply.status == 408
            assert reply.json["error"]["message"]
            assert await wire.rest() == b""
            drip.cancel()
            await until(lambda: not connections(stage))

    run(scene)


def test_connection_with_an_unread_body_is_closed() -> None:
    """Paths that need no body respond immediately, and the rest of the body has a time limit."""
    timeouts = ConnectionTimeouts(body_linger_seconds=0.2)

    async def scene() -> None:
        sent = get(headers=b"content-length: 999999\r\n")
        async with serving(timeouts=timeouts) as stage, await wire_to(stage, sent) as wire:
            drip = asyncio.create_task(_drip(wire.writer, b"", b"x"))
            assert (await wire.reply()).status == 200
            assert await wire.rest() == b""
            drip.cancel()

    run(scene)


def test_body_soon_after_its_response_is_accepted() -> None:
    async def scene() -> None:
        sent = get(headers=b"content-length: 5\r\n")
        async with serving() as stage, await wire_to(stage, sent) as wire:
            assert (await wire.reply()).status == 200
            wire.writer.write(b"hello" + get())
            assert (await wire.reply()).status == 200
            (protocol,) = connections(stage)
            assert protocol._linger_timer is None

    run(scene)


def test_too_large_body_gets_no_100_continue() -> None:
    """The client then does not send the body, so the following data is not taken for it."""

    async def scene() -> None:
        sent = post(b"content-length: 999999999999\r\nexpect: 100-continue\r\n", b"")
        async with serving() as stage, await wire_to(stage, sent) as wire:
            assert (await wire.reply()).status == 413
            assert await wire.rest() == b""

    run(scene)


def test_expect_100_continue_is_honored() -> None:
    async def scene() -> None:
        sent = post(LENGTH + b"expect: 100-continue\r\n", b"")
        async with serving() as stage, await wire_to(stage, sent) as wire:
            assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            wire.writer.write(BODY)
            assert (await wire.reply()).status == 200

    run(scene)


@pytest.mark.parametrize("how", ["a stream", "a whole answer"])
def test_client_that_never_reads_is_disconnected(how: str) -> None:
    """Neither the engine nor the connection is kept running for it."""
    timeouts = ConnectionTimeouts(stall_seconds=0.3)

    async def scene() -> None:
        async with serving(send_buffer=4096, timeouts=timeouts) as stage:
            stage.engine.plan = _generates(stage, None if how == "a stream" else 40_000)
            narrow = _narrow(stage)
            narrow.sendall(STREAM if how == "a stream" else post(LENGTH))
            assert (await stage.ended.get())["endpoint"] == "chat_completions"
            await until(lambda: not connections(stage) and not stage.engine.running)
            narrow.close()
            disconnected = stage.metric("dovetail_disconnected_clients_total", model=NAME)
            assert disconnected == (1 if how == "a stream" else 0)

    run(scene)


def test_slow_reader_gets_the_complete_response() -> None:
    """It reads something before each stall timeout expires."""
    timeouts = ConnectionTimeouts(stall_seconds=5.0)

    async def scene() -> None:
        async with serving(send_buffer=4096, timeouts=timeouts) as stage:
            stage.engine.plan = _generates(stage, 3_000)
            narrow = _narrow(stage)
            narrow.sendall(STREAM)
            narrow.setblocking(False)
            loop, got = asyncio.get_running_loop(), bytearray()
            while not got.endswith(b"0\r\n\r\n"):
                got += await loop.sock_recv(narrow, 20_000)
                await asyncio.sleep(0.002)
            narrow.close()
            assert got.count(b"xyz") == 3_000
            assert (await stage.ended.get())["status"] == 200

    run(scene)


def test_vanished_clients_are_detected() -> None:
    """They send no FIN: TCP keep-alive and unacknowledged data reveal them."""

    async def scene() -> None:
        async with serving() as stage, await wire_to(stage, get()) as wire:
            await wire.reply()
            (protocol,) = connections(stage)
            there = protocol.transport.get_extra_info("socket")
            assert there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            values = [
                there.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            ]
            assert values == [60, 15, 4, 300_000]

    run(scene)


def test_client_that_vanished_while_waiting_is_detected() -> None:
    """No FIN was sent, and the model has produced no output that could remain unacknowledged."""
    timeouts = ConnectionTimeouts(
        keepalive_idle_seconds=1, keepalive_interval_seconds=1, keepalive_probes=1
    )

    async def scene() -> None:
        async with serving(timeouts=timeouts) as stage:
            stage.engine.plan = _thinks
            client = socket.create_connection(("127.0.0.1", stage.port))
            client.sendall(STREAM)
            await stage.engine.began.wait()
            try:
                client.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
            except OSError:
                pytest.skip("only root can close a connection without a FIN")
            finally:
                client.close()
            assert (await stage.ended.get())["disconnected"] is True
            assert not stage.engine.running

    run(scene)


_READER = """
import socket, sys
reader = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
reader.sendall(sys.stdin.buffer.read())
while reader.recv(100): pass
"""


def test_frozen_client_is_disconnected() -> None:
    """Its kernel still acknowledges data: only the stall timeout detects that it does not read."""
    timeouts = ConnectionTimeouts(stall_seconds=0.5)

    async def scene() -> None:
        async with serving(send_buffer=4096, timeouts=timeouts) as stage:
            stage.engine.plan = _generates(stage, None)
            command = [sys.executable, "-c", _READER, str(stage.port)]
            with subprocess.Popen(command, stdin=subprocess.PIPE) as client:  # noqa: ASYNC220
                assert client.stdin is not None
                client.stdin.write(STREAM)
                client.stdin.close()
                await stage.engine.began.wait()
                client.send_signal(signal.SIGSTOP)
                assert (await stage.ended.get())["disconnected"] is True
                await until(lambda: not connections(stage) and not stage.engine.running)
                client.kill()

    run(scene)


def test_idle_connections_leave_file_descriptors_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """File descriptors for engines and stores stay free; other clients get 503 with Retry-After."""
    monkeypatch.setattr(http_protocol, "max_connections", lambda: 50)

    async def scene() -> None:
        async with serving() as stage:
            idle = [await wire_to(stage) for _ in range(50)]
            await until(lambda: len(connections(stage)) == 50)
            async with await wire_to(stage, get()) as late:
                reply = await late.reply()
                assert (reply.status, reply.headers["retry-after"]) == (503, "5")
                assert await late.rest() == b""
            for wire in idle[:10]:
                wire.hang_up()
            await until(lambda: len(connections(stage)) == 40)
            assert (await stage.request("GET", "/live")).status == 200
            for wire in idle:
                wire.hang_up()

    run(scene)


def test_connection_limit_follows_the_file_limit() -> None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    connections, engines = open_files.max_connections(), open_files.max_engine_connections()
    assert connections + engines == soft - open_files.RESERVED_FILES
    assert connections >= engines


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages", b"/v1/responses"])
def test_concurrent_bodies_share_a_memory_limit(path: bytes) -> None:
    """Each body is within its own limit, and none of them ends."""

    async def scene() -> None:
        limit = 100_000
        begun = post(b"content-length: %d\r\n" % limit, b" " * (limit - 1), path=path)
        async with serving(HttpOptions(max_body_bytes=limit)) as stage:
            wires = [await wire_to(stage, begun) for _ in range(17)]
            await until(lambda: memory.request_memory.total_bytes > 15 * limit)
            refused = [asyncio.create_task(wire.reply()) for wire in wires]
            (first,), waiting = await asyncio.wait(refused, return_when="FIRST_COMPLETED")
            reply = await first
            assert reply.status == 503
            assert reply.headers["retry-after"] == "2"
            assert (await stage.request("POST", "/v1/tokenize", {"prompt": "x"})).status == 200
            for wire in wires:
                wire.hang_up()
            await asyncio.wait(waiting)
            for task in waiting:
                assert isinstance(task.exception(), asyncio.IncompleteReadError)
            await until(lambda: memory.request_memory.total_bytes == 0)

    run(scene)


def test_server_raises_its_file_limit() -> None:
    code = (
        "import resource as r; from dovetail.net import open_files as c;"
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 900)); c.raise_file_limit();"
        "print(r.getrlimit(r.RLIMIT_NOFILE), c.max_connections())"
    )
    first = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert first.stdout == "(900, 900) 418\n"


async def _thinks(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
    """Generate no token, forever."""
    await asyncio.Event().wait()
    yield TokenDelta([0])


async def _drip(writer: asyncio.StreamWriter, first: bytes, more: bytes) -> None:
    writer.write(first)
    while not writer.is_closing():
        writer.write(more)
        await asyncio.sleep(0.01)


def _generates(stage: Stage, count: int | None) -> Plan:
    """Return an engine plan that generates so many words, or never ends."""
    word = stage.engine.tokenizer.encode("xyz")

    async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        sent = 0
        while count is None or sent < count:
            sent += 1
            yield TokenDelta(word)
            await asyncio.sleep(0)
        yield TokenDelta([stage.engine.stop_id], finish="stop")

    return play


def _narrow(stage: Stage) -> socket.socket:
    """Open a connection with small buffers, which reads only on request."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.connect(("127.0.0.1", stage.port))
    return narrow
