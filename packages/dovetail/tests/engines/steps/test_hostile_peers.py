"""Peers that break the protocol, do not read, or are gone without closing the connection."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from scripted_fixture import request
from step_fixture import KEY, CollectingSink, SteppedEngine, served

from dovetail.engines.engine import Constraint, RemoteModel, TokenDelta
from dovetail.engines.steps import client as step_client
from dovetail.engines.steps import framing
from dovetail.engines.steps import server as step_server
from dovetail.engines.steps.client import StepAddress, connect
from dovetail.engines.steps.framing import FrameReader, encode_frame
from dovetail.engines.steps.messages import (
    PROTOCOL_VERSION,
    Abort,
    EngineDescription,
    Hello,
    Rejection,
    Step,
    Welcome,
    decode_engine_message,
    describe_engine,
    to_message,
)
from dovetail.engines.steps.remote import RemoteStepEngine
from dovetail.engines.steps.server import StepServer
from dovetail.net.http_client import Endpoint
from dovetail_model import EngineError, EngineUnavailable, InvalidRequest

GREETING = encode_frame(Hello(PROTOCOL_VERSION, KEY))


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


@asynccontextmanager
async def listening(
    engine: SteppedEngine, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[StepServer, int]]:
    """Serve an engine on a loopback port."""
    listener = socket.create_server(("127.0.0.1", 0))
    description = describe_engine(engine.name, engine.capabilities, model="m")
    server = StepServer(engine, description, KEY)
    serving = await server.serve(listener, tls)
    try:
        yield server, listener.getsockname()[1]
    finally:
        serving.close()


def remote_engine(port: int) -> RemoteStepEngine:
    endpoint = Endpoint.parse(f"tcp://127.0.0.1:{port}", {"authorization": f"Bearer {KEY}"})
    return RemoteStepEngine("vllm", endpoint, RemoteModel("m", root="m"))


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    issued = Authority(tmp_path).issue("engine")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.cert, issued.key)
    return context


def test_nothing_large_is_buffered_before_the_key() -> None:
    async def test() -> None:
        async with listening(SteppedEngine()) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write((1 << 20).to_bytes(4, "little") + b"x" * 1000)
            async with asyncio.timeout(step_server.HELLO_TIMEOUT_SECONDS / 2):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()

    run(test())


def test_a_rejected_client_cannot_try_another_key() -> None:
    async def test() -> None:
        async with listening(SteppedEngine()) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(encode_frame(Hello(PROTOCOL_VERSION, "guess")) + GREETING)
            frames = list(FrameReader().feed(await reader.read()))
            (message,) = map(decode_engine_message, frames)
            assert isinstance(message, Rejection)
            writer.close()

    run(test())


def test_a_client_without_a_tls_handshake_is_disconnected(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_server, "HELLO_TIMEOUT_SECONDS", 0.2)

    async def test() -> None:
        async with listening(SteppedEngine(), tls) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            writer.close()

    run(test())


@pytest.mark.parametrize("engine_uses_tls", [True, False])
def test_the_other_scheme_is_reported(engine_uses_tls: bool, tls: ssl.SSLContext) -> None:
    async def test() -> None:
        async with listening(SteppedEngine(), tls if engine_uses_tls else None) as (_, port):
            context = None if engine_uses_tls else ssl.create_default_context()
            address = StepAddress(KEY, None, "localhost", port, context)
            hint = "does it use TLS" if engine_uses_tls else "does it listen without TLS"
            with pytest.raises(EngineUnavailable, match=hint) as got:
                await connect(address, "vLLM")
            assert not isinstance(got.value.__cause__, TimeoutError)

    run(test())


def test_a_stream_that_is_aborted_at_once_leaves_nothing() -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with listening(stepped) as (server, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            start = encode_frame(to_message(1, request()))
            writer.write(GREETING + start + encode_frame(Abort(1)))
            writer.write(encode_frame(to_message(2, request())))
            await stepped.wait_for(1)
            (connection,) = server.connections
            assert list(connection._tasks) == [2]
            writer.write(encode_frame(to_message(2, request())))  # numbers are not reused
            await stepped.wait_for(0)
            writer.close()

    run(test())


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="requires Linux")
@pytest.mark.parametrize("limit", ["MAX_UNREAD_BYTES", "UNACKNOWLEDGED_TIMEOUT_SECONDS"])
def test_the_streams_of_a_client_that_does_not_read_are_aborted(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_server, limit, {"MAX_UNREAD_BYTES": 1 << 20}.get(limit, 0.3))

    async def test() -> None:
        stepped = SteppedEngine()
        async with listening(stepped) as (_, port):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
                client.connect(("127.0.0.1", port))
                client.sendall(GREETING + encode_frame(to_message(1, request())))
                await stepped.wait_for(1)
                (sink,) = stepped.sinks.values()
                while stepped.sinks:
                    sink.push(TokenDelta([7] * 100_000))
                    await asyncio.sleep(0.005)
            assert len(stepped.aborted) == 1

    run(test())


def test_an_engine_that_is_gone_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """It greets and then sends nothing, as a machine that was switched off."""
    monkeypatch.setattr(step_client, "SILENCE_CHECK_SECONDS", 0.1)

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_frame(Welcome(PROTOCOL_VERSION, EngineDescription("vllm", "m"))))
        await reader.read()
        writer.close()

    async def test() -> None:
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            engine = remote_engine(server.sockets[0].getsockname()[1])
            await engine.start()
            with pytest.raises(EngineUnavailable, match=r"sent nothing for 0\.2 s"):
                await engine.generate(request(), CollectingSink())
            await engine.stop()

    run(test())


def test_an_idle_engine_is_not_regarded_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_client, "SILENCE_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(step_server, "REPORT_INTERVAL_SECONDS", 0.05)

    async def test() -> None:
        async with listening(SteppedEngine()) as (server, port):
            engine = remote_engine(port)
            await engine.start()
            (connection,) = server.connections
            await asyncio.sleep(0.8)
            assert (await engine.health()).ready
            assert server.connections == {connection}
            await engine.stop()

    run(test())


def test_a_request_that_is_too_large_ends_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would close the connection, and with it all streams."""

    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            other = asyncio.create_task(client.generate(request(), CollectingSink()))
            await stepped.wait_for(1)
            monkeypatch.setattr(framing, "MAX_FRAME_BYTES", 1000)
            large = request(constraint=Constraint("ebnf", "x" * 1000))
            with pytest.raises(InvalidRequest, match="too large for the engine"):
                await client.generate(large, CollectingSink())
            stepped.step(1, last=True)
            await other

    run(test())


def test_a_step_with_a_delta_too_few_is_an_invalid_frame(tmp_path: Path) -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            stream = asyncio.create_task(client.generate(request(), CollectingSink()))
            await stepped.wait_for(1)
            client.data_received(encode_frame(Step([1, 2], [TokenDelta([7])])))
            with pytest.raises(EngineError, match="invalid frame"):
                await stream

    run(test())


def test_requests_that_find_the_connection_lost_share_a_new_one() -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with listening(stepped) as (server, port):
            engine = remote_engine(port)
            await engine.start()
            server.disconnect_all()
            while server.connections:  # noqa: ASYNC110 - the transports remove themselves
                await asyncio.sleep(0.01)
            streams = [
                asyncio.create_task(engine.generate(request(id=f"{n}"), CollectingSink()))
                for n in range(20)
            ]
            await stepped.wait_for(20)
            assert len(server.connections) == 1
            stepped.step(1, last=True)
            await asyncio.gather(*streams)
            await engine.stop()

    run(test())
