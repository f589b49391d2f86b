"""The relay: bytes in both directions, backpressure, closes and aborts."""

import asyncio
import random
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from http_fixture import run
from watch_fixture import Seen, Serve, listening, observing, relaying, send_in_chunks

from dovetail.net.http_client import Endpoint
from dovetail.watch import relay as relay_module
from dovetail.watch.capture import CaptureLimits, ConnectionCapture, UnobservableError
from dovetail.watch.observer import TrafficObserver
from dovetail.watch.relay import RelayDirection, TcpRelay
from dovetail.watch.request_heads import RequestHeadFilter

LOOPBACK = ip_address("127.0.0.1")
ODD = b"".join(bytes([n]) for n in range(256))


def conversation(chance: random.Random) -> tuple[bytes, bytes]:
    """Generate the bytes of a client and of a server: HTTP of all kinds, or arbitrary bytes."""
    request, response = [], []
    for _ in range(chance.randrange(1, 6)):
        body = chance.randbytes(chance.choice((0, 1, 1000, 300_000)))
        kind = chance.choice(("length", "chunked", "odd", "noise"))
        if kind == "length":
            request.append(
                b"POST /v1/messages HTTP/1.1\r\nHOST:  a\r\nContent-Length: %d\r\n" % len(body)
            )
            request.append(b"X-Odd: \xe4\xff\r\nx-odd: again\r\n\r\n" + body)
            response.append(b"HTTP/1.1 200 OK\r\ncontent-length:%d\r\n\r\n%b" % (len(body), body))
        elif kind == "chunked":
            chunk = b"%x;ext=1\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (len(body) or 1, body or b"z")
            request.append(
                b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + chunk
            )
            response.append(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 \r\n")
            response.append(b"Transfer-Encoding: chunked\r\n\r\n" + chunk)
        elif kind == "odd":
            request.append(b"GET / HTTP/1.0\n\nBREW /pot HTTP/9.9\r\n : folded\r\n\r\n")
            response.append(b"ICY 200 OK\r\n\r\n" + body)
        else:
            request.append(ODD + body)
            response.append(body + ODD)
    return b"".join(request), b"".join(response)


@pytest.mark.parametrize("seed", range(25))
def test_bytes_are_relayed_unchanged_in_both_directions(seed: int) -> None:
    chance = random.Random(seed)
    request, response = conversation(chance)
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        responding = asyncio.create_task(send_in_chunks(writer, response, random.Random(seed + 1)))
        got.append(await reader.read(-1))
        await responding
        writer.write_eof()

    async def scene() -> None:
        seen = Seen()
        async with listening(serve) as port, observing(port, seen) as (_, own):
            reader, writer = await asyncio.open_connection("127.0.0.1", own)
            sending = asyncio.create_task(send_in_chunks(writer, request, chance))
            received = asyncio.create_task(reader.read(-1))
            await sending
            writer.write_eof()  # the server responds to a half-closed client
            assert await received == response
            writer.close()
        assert got == [request]

    run(scene)


def test_concurrent_connections_do_not_mix() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)

    async def client(port: int, seed: int) -> None:
        chance = random.Random(seed)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = chance.randbytes(50_000)
        sending = asyncio.create_task(send_in_chunks(writer, sent, chance))
        assert await reader.readexactly(len(sent)) == sent
        await sending
        writer.close()

    async def scene() -> None:
        async with listening(serve) as port, relaying(port) as (relay, own):
            await asyncio.gather(*(client(own, seed) for seed in range(40)))
            assert relay.stats.connections == 40

    run(scene)


def test_slow_reader_causes_backpressure() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536

    async def scene() -> None:
        async with listening(serve) as port, relaying(port) as (_, own):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", own))
            before = -1
            while sent != before or not sent:  # until no more data is transferred
                before = sent
                for _ in range(2000):
                    await asyncio.sleep(0)
            assert sent < 64 << 20
            sock.close()

    run(scene)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_client_disconnect_reaches_the_server(how: str) -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        gone.set()

    async def scene() -> None:
        async with listening(serve) as port, relaying(port) as (_, own):
            _, writer = await asyncio.open_connection("127.0.0.1", own)
            writer.write(b"hello")
            await writer.drain()
            if how == "reset":
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort() if how == "reset" else writer.close()
            await gone.wait()

    run(scene)


def test_server_abort_aborts_the_client() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"half an ans")
        await writer.drain()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async def scene() -> None:
        async with listening(serve) as port, relaying(port) as (relay, own):
            reader, writer = await asyncio.open_connection("127.0.0.1", own)
            writer.write(b"x")
            with suppress(ConnectionError):
                assert len(await reader.read(-1)) <= 11
            writer.close()
            await relay.stats.idle.wait()

    run(scene)


def test_client_cannot_fill_the_memory_while_connecting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the server is connected, at most one chunk is read from the client."""
    sent = b"x" * (32 << 20)
    dialing, dialed = asyncio.Event(), asyncio.Event()
    dial = relay_module._open_connection

    async def slowly(endpoint: Endpoint, side: relay_module._RelayProtocol) -> None:
        dialing.set()
        await dialed.wait()
        await dial(endpoint, side)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d" % len(await reader.readexactly(len(sent))))
        await writer.drain()

    async def scene() -> None:
        monkeypatch.setattr(relay_module, "_open_connection", slowly)
        async with listening(serve) as port, relaying(port) as (relay, own):
            reader, writer = await asyncio.open_connection("127.0.0.1", own)
            writer.write(sent)
            await dialing.wait()
            for _ in range(3000):
                await asyncio.sleep(0)
            (client,) = relay.stats.open_connections
            assert sum(map(len, client._pending)) < 1 << 20
            dialed.set()
            assert await reader.read(-1) == b"%d" % len(sent)
            writer.close()

    run(scene)


def test_unreachable_server_gives_502() -> None:
    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        async with relaying(port) as (relay, own):
            reader, writer = await asyncio.open_connection("127.0.0.1", own)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            response = await reader.read(-1)
            assert response.startswith(b"HTTP/1.1 502 ")
            assert b"cannot connect to" in response
            assert relay.stats.unreachable == 1
            writer.close()

    run(scene)


REQUEST = b"POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"
RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class TestTheObserver:
    def test_pipelined_requests_and_head_responses_are_captured(self) -> None:
        """A HEAD response has a length but no body; the connection stays open."""
        request = b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n" + REQUEST * 3
        response = b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + RESPONSE * 3
        seen = self._play(request, response)
        assert [(e.status, e.request, e.response) for e in seen.exchanges] == [
            (200, b"{}", b"{}")
        ] * 3

    def test_secrets_are_not_stored(self) -> None:
        keyed = REQUEST.replace(b"host: a", b"host: a\r\nX-Api-Key: k\r\nAuthorization: Bearer k")
        seen = self._play(keyed, RESPONSE)
        assert seen.exchanges[0].request_headers == {"host": "a", "content-length": "2"}

    @pytest.mark.parametrize(
        "name", ["x-goog-api-key", "Ocp-Apim-Subscription-Key", "X-Auth-Token", "x-litellm-api-key"]
    )
    def test_secrets_of_other_vendors_are_not_stored(self, name: str) -> None:
        keyed = REQUEST.replace(b"host: a", f"host: a\r\n{name}: sk-1".encode())
        keyed = keyed.replace(b"/v1/messages", b"/v1/messages?beta=true&api_key=sk-1&sig=sk-1")
        (seen,) = self._play(keyed, RESPONSE).exchanges
        assert "sk-1" not in str(seen)
        assert seen.target == "/v1/messages?beta=true&api_key=…&sig=…"

    def test_response_without_a_length_ends_with_the_connection(self) -> None:
        response = b"HTTP/1.1 200 OK\r\n\r\nuntil the end"
        seen = self._play(REQUEST, response)
        assert [(e.response, e.truncated) for e in seen.exchanges] == [(b"until the end", False)]

    def test_aborted_response_is_truncated(self) -> None:
        seen = self._play(REQUEST, RESPONSE[:-1])
        assert [(e.response, e.truncated) for e in seen.exchanges] == [(b"{", True)]

    @pytest.mark.parametrize(
        ("sent", "response", "limits", "reason"),
        [
            (
                REQUEST,
                b"nonsense\r\n\r\n",
                CaptureLimits(),
                "the traffic is not valid HTTP",
            ),
            (REQUEST, RESPONSE, CaptureLimits(body_bytes=3), "a body is too large"),
            (REQUEST, RESPONSE, CaptureLimits(queue_bytes=10), "the analysis is too slow"),
            (
                b"GET /v1/responses HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\n\r\n",
                b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n\x81\x00\xff",
                CaptureLimits(),
                "the connection was upgraded to another protocol",
            ),
            (
                b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n",
                b"HTTP/1.1 200 OK\r\n\r\n" + b"\x16\x03" * 1000,
                CaptureLimits(),
                "the connection became a tunnel",
            ),
        ],
        ids=["nonsense", "too large", "too slow", "upgrade", "tunnel"],
    )
    def test_unobservable_traffic_is_counted_and_relayed(
        self, sent: bytes, response: bytes, limits: CaptureLimits, reason: str
    ) -> None:
        seen = Seen()
        unobserved: dict[str, int] = {}

        async def scene() -> None:
            async with (
                listening(_respond_with(response)) as port,
                observing(port, seen, limits) as both,
            ):
                observer, own = both
                assert await _exchange(own, sent) == response
            unobserved.update(observer.unobserved)

        run(scene)
        assert unobserved == {reason: 1}
        assert not seen.exchanges

    def test_server_that_sends_first_is_not_observed(self) -> None:
        """There is no request to which those bytes belong."""
        capture = ConnectionCapture(CaptureLimits(), lambda: 1)
        with pytest.raises(UnobservableError, match="before a request"):
            capture.feed("response", b"220 mail\r\n", 0.0)

    def test_bodies_of_other_requests_are_not_stored(self) -> None:
        capture = ConnectionCapture(CaptureLimits(), lambda: 1)
        capture.feed("request", b"GET /file HTTP/1.1\r\nhost: a\r\n\r\n", 0.0)
        capture.feed("response", b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", 0.0)
        for _ in range(999):
            capture.feed("response", b"x", 0.0)
        assert capture._pending is not None
        assert (capture._pending.marks, capture._pending.response_body) == ([], [])

    def test_missed_traffic_is_not_reported_as_a_disconnect(self) -> None:
        """The connection ends before the observer processes the queue."""
        seen = Seen()
        observer = TrafficObserver(seen.take, CaptureLimits(queue_bytes=800))
        observer.observe(1, "request", REQUEST, 0.0)
        observer.observe(1, "response", RESPONSE[:-2] + b"x" * 1000, 0.0)
        observer.observe(1, "closed", b"", 0.0)
        observer.close()
        assert not seen.exchanges
        assert observer.unobserved == {"the analysis is too slow": 1}
        assert not observer._ignored_connections

    def test_small_chunks_count_with_their_overhead(self) -> None:
        observer = TrafficObserver(Seen().take, CaptureLimits(queue_bytes=10_000))
        for _ in range(1000):
            observer.observe(1, "request", b"x", 0.0)
        assert observer._queue.qsize() < 100
        observer.close()

    def test_failing_observer_does_not_disturb_the_relay(self) -> None:
        class Broken(Seen):
            def take(self, exchange: object) -> None:
                raise ZeroDivisionError

        async def scene() -> None:
            async with (
                listening(_respond_with(RESPONSE)) as port,
                observing(port, Broken()) as (observer, own),
            ):
                for _ in range(3):
                    assert await _exchange(own, REQUEST) == RESPONSE
            assert sum(observer.unobserved.values()) == 3

        run(scene)

    @staticmethod
    def _play(request: bytes, response: bytes) -> Seen:
        seen = Seen()

        async def scene() -> None:
            async with (
                listening(_respond_with(response)) as port,
                observing(port, seen) as (_, own),
            ):
                assert await _exchange(own, request) == response

        run(scene)
        return seen


class TestTheHostLine:
    BODY = b"Host: not me\r\n\r\nGET / HTTP/1.1\r\nHost: nor me\r\n\r\n"
    REQUESTS = (
        b"POST /a HTTP/1.1\r\nX: 1\r\nhOsT:\t here:8001\r\ncontent-length: %d\r\n\r\n%b"
        b"POST /b HTTP/1.1\r\nHost: here\r\ntransfer-encoding: chunked\r\n\r\n"
        b"%x;e\r\n%b\r\n0\r\nHost: trailer\r\n\r\n"
        b"GET /c HTTP/1.1\r\nHost:here\r\n\r\n"
        b"GET /d HTTP/1.1\r\nHost: here\r\nUpgrade: x\r\n\r\nHost: free\r\n\r\n"
    ) % (len(BODY), BODY, len(BODY), BODY)
    REWRITTEN = (
        REQUESTS.replace(b"\t here:8001", b"\t there:443")
        .replace(b"Host: here\r", b"Host: there:443\r")
        .replace(b"Host:here\r", b"Host:there:443\r")
    )

    @pytest.mark.parametrize("seed", range(20))
    def test_only_host_headers_are_rewritten(self, seed: int) -> None:
        chance, line = random.Random(seed), RequestHeadFilter(host="there:443")
        out, at = [], 0
        while at < len(self.REQUESTS):
            size = chance.choice((1, 3, 50, 1000))
            out.append(line.feed(self.REQUESTS[at : at + size]))
            at += size
        assert b"".join(out) == self.REWRITTEN

    def test_headers_are_added_to_every_request(self) -> None:
        line = RequestHeadFilter(headers={"x-debug": "prefix"})
        sent = b"".join(line.feed(self.REQUESTS[at : at + 1]) for at in range(len(self.REQUESTS)))
        assert sent.replace(b"x-debug: prefix\r\n", b"") == self.REQUESTS
        assert sent.count(b"\r\nx-debug: prefix\r\n\r\n") == 4  # /a to /d

    def test_other_protocols_are_relayed_unchanged(self) -> None:
        line = RequestHeadFilter(host="there")
        noise = b"\0" * (300 << 10)
        assert line.feed(noise) == noise


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(LOOPBACK)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(Encoding.PEM))
    form = PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
    return paths


@pytest.mark.parametrize("trusted", [True, False])
def test_tls_certificate_is_verified_and_host_is_rewritten(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[bytes] = []
    cert, key = certificate(tmp_path)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"{}"))
        writer.write(RESPONSE)
        await writer.drain()

    async def scene() -> None:
        secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        secure.load_cert_chain(cert, key)
        async with listening(serve, secure) as port:
            relay = TcpRelay(Endpoint("127.0.0.1", port, None, True))
            own = int((await relay.listen("127.0.0.1", 0)).rpartition(":")[2])
            response = await _exchange(own, REQUEST)
            await relay.close()
        if trusted:
            assert response == RESPONSE
            assert got == [REQUEST.replace(b"host: a", b"host: 127.0.0.1:%d" % port)]
        else:
            assert response.startswith(b"HTTP/1.1 502 ")
            assert not got

    run(scene)


def test_observer_gets_the_relayed_bytes() -> None:
    relayed: list[tuple[RelayDirection, bytes]] = []

    def on_data(connection: int, direction: RelayDirection, data: bytes, at: float) -> None:
        relayed.append((direction, data))

    async def scene() -> None:
        async with (
            listening(_respond_with(RESPONSE)) as port,
            relaying(port, on_data) as (relay, own),
        ):
            assert await _exchange(own, REQUEST) == RESPONSE
            await relay.stats.idle.wait()

    run(scene)
    assert b"".join(data for side, data in relayed if side == "request") == REQUEST
    assert b"".join(data for side, data in relayed if side == "response") == RESPONSE
    assert relayed[-1] == ("closed", b"")


def _respond_with(response: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(response)
        writer.write_eof()
        with suppress(ConnectionError):
            await reader.read(-1)

    return serve


async def _exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read(-1)
    finally:
        writer.close()
