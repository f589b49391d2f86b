"""The engines' HTTP client against a server that answers byte by byte as the test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.engines import line, wire
from dovetail.engines.wire import Call, Endpoint, Lines, Patience, fetch, send
from dovetail_model import DovetailError, EngineTimeout, EngineUnavailable

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
POST = Call("POST", "/x", b"{}")
SHORT = Call("POST", "/x", b"{}", patience=Patience(connect=5.0, silence=0.05))


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[Endpoint]:
    """A server for one kind of answer. It closes each connection when the answer returns."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = running.sockets[0].getsockname()
        yield Endpoint(host, port, headers={"authorization": "Bearer k"})
    finally:
        running.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].partition("\r")[0] or 0)
    return head, await reader.readexactly(length)


def saying(*pieces: bytes) -> Answer:
    """Reads the request, then writes the pieces one by one."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return answer


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWERS = [
    ("length", [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"], b"hello"),
    ("chunked", [CHUNKED, chunk(b"he"), chunk(b"llo"), b"0\r\n\r\n"], b"hello"),
    ("bytes", [bytes([b]) for b in CHUNKED + chunk(b"hello") + b"0\r\n\r\n"], b"hello"),
    ("trailer", [CHUNKED, chunk(b"hello"), b"0\r\nx: y\r\n\r\n"], b"hello"),
    ("until closed", [b"HTTP/1.0 200 OK\r\n\r\nhel", b"lo"], b"hello"),
    ("continue", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
]


@pytest.mark.parametrize(("pieces", "body"), [a[1:] for a in ANSWERS], ids=[a[0] for a in ANSWERS])
def test_bodies(pieces: list[bytes], body: bytes) -> None:
    async def main() -> tuple[int, bytes]:
        async with server(saying(*pieces)) as endpoint:
            return await fetch(endpoint, POST)

    assert asyncio.run(main()) in [(200, body), (204, body)]


def test_what_is_sent() -> None:
    seen: list[tuple[str, bytes]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(b"HTTP/1.1 418 Teapot\r\nContent-Length: 0\r\n\r\n")

    async def main() -> None:
        async with server(answer) as endpoint:
            big = Call("POST", "/big", b"x" * 5_000_000, {"x-extra": "1"})
            assert (await fetch(endpoint, big))[0] == 418
            assert (await fetch(endpoint, Call("GET", "/small")))[0] == 418

    asyncio.run(main())
    (head, body), (small, nothing) = seen
    assert head.startswith("post /big http/1.1\r\n")
    assert "authorization: bearer k\r\n" in head
    assert "x-extra: 1\r\n" in head
    assert "content-type: application/json\r\n" in head
    assert len(body) == 5_000_000
    assert "content-length" not in small
    assert nothing == b""


def test_events() -> None:
    sse = 'data: {"a":1}\n\n: alive\n\nevent: b\ndata: é漢\n\n'.encode()
    pieces = [CHUNKED, *(chunk(sse[n : n + 3]) for n in range(0, len(sse), 3)), b"0\r\n\r\n"]

    async def main() -> list[tuple[str, str]]:
        async with server(saying(*pieces)) as endpoint, send(endpoint, POST) as reply:
            assert reply.headers["transfer-encoding"] == "chunked"
            return [(event.event, event.data) async for event in reply.events()]

    assert asyncio.run(main()) == [("", '{"a":1}'), ("b", "é漢")]


def test_leaving_closes_the_connection() -> None:
    async def main() -> None:
        gone = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(CHUNKED + chunk(b"data: 1\n\n"))
            assert await reader.read() == b""
            gone.set()

        async with server(answer) as endpoint:
            async with send(endpoint, POST) as reply:
                assert await anext(reply.chunks()) == b"data: 1\n\n"
            await gone.wait()

    asyncio.run(main())


def test_refusal_before_the_body_is_read() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        while await reader.read(65536):  # polite: the client is let finish
            pass

    async def main() -> tuple[int, bytes]:
        async with server(answer) as endpoint:
            return await fetch(endpoint, Call("POST", "/", b"x" * 3_000_000))

    assert asyncio.run(main()) == (413, b"no")


FAULTS: list[tuple[str, list[bytes], type[DovetailError], str]] = [
    ("nothing", [], EngineUnavailable, "broke off its answer"),
    ("half a head", [b"HTTP/1.1 200"], EngineUnavailable, "broke off"),
    ("not http", [b"garbage\r\n\r\n"], EngineUnavailable, "broke off"),
    ("short", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"], EngineUnavailable, "broke"),
    ("half a chunk", [CHUNKED, b"5\r\nab"], EngineUnavailable, "broke off"),
    ("no last chunk", [CHUNKED, chunk(b"ab")], EngineUnavailable, "broke off"),
    ("bad chunk", [CHUNKED, b"zz\r\n"], EngineUnavailable, "broke off"),
    ("endless head", [b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 60000], EngineUnavailable, "head"),
    ("upgrade", [b"HTTP/1.1 101 X\r\nUpgrade: x\r\n\r\n"], EngineUnavailable, "broke off"),
]


@pytest.mark.parametrize(("pieces", "kind", "words"), [f[1:] for f in FAULTS])
def test_faults(pieces: list[bytes], kind: type[DovetailError], words: str) -> None:
    async def main() -> None:
        async with server(saying(*pieces)) as endpoint:
            await fetch(endpoint, POST)

    with pytest.raises(kind, match=words):
        asyncio.run(main())


@pytest.mark.parametrize("pieces", [[], [CHUNKED, chunk(b"a")]])
def test_silence(pieces: list[bytes]) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await saying(*pieces)(reader, writer)
            await reader.read()

        async with server(answer) as endpoint:
            await fetch(endpoint, SHORT)

    with pytest.raises(EngineTimeout, match=r"was silent for 0\.05 s"):
        asyncio.run(main())


def test_who_reads_slowly_does_not_make_the_server_silent() -> None:
    async def main() -> list[bytes]:
        more = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(CHUNKED + chunk(b"a"))
            await more.wait()
            writer.write(chunk(b"b") + b"0\r\n\r\n")

        async with server(answer) as endpoint, send(endpoint, SHORT) as reply:
            pieces = []
            async for piece in reply.chunks():
                pieces.append(piece)
                more.set()
                await asyncio.sleep(3 * SHORT.patience.silence)  # the client's client is slow
            return pieces

    assert asyncio.run(main()) == [b"a", b"b"]


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LONGEST", 1 << 20)

    async def main() -> None:
        endless = [CHUNKED, *(chunk(b"x" * 65536) for _ in range(64))]
        async with server(saying(*endless)) as endpoint:
            with pytest.raises(EngineUnavailable, match="more than 1 MiB"):
                await fetch(endpoint, POST)

    asyncio.run(main())


def test_a_host_that_is_not_there() -> None:
    with pytest.raises(EngineUnavailable, match="no such host"):
        asyncio.run(fetch(Endpoint("no-such-host.invalid", 1), POST))


def test_a_server_without_tls() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def main() -> None:
        async with server(refuse) as endpoint:
            with pytest.raises(EngineUnavailable, match=r"\([A-Z_]+\)"):
                await fetch(replace(endpoint, tls=True), POST)

    asyncio.run(main())


def test_nobody_listens(tmp_path: Path) -> None:
    for endpoint in (Endpoint("127.0.0.1", 9), Endpoint(socket=str(tmp_path / "none.sock"))):
        with pytest.raises(EngineUnavailable, match=f"no connection to {endpoint}"):
            asyncio.run(fetch(endpoint, POST))


def test_header_that_would_split_the_request() -> None:
    async def main() -> None:
        async with server(saying()) as endpoint:
            await fetch(endpoint, Call("GET", "/", headers={"x": "a\r\nb: c"}))

    with pytest.raises(EngineUnavailable, match="cannot be sent as HTTP"):
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
def test_addresses(url: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(url) == endpoint
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize("url", ["engine:8000", "ftp://engine", "http://", "unix://", ""])
def test_no_addresses(url: str) -> None:
    with pytest.raises(ValueError, match="not an http address"):
        Endpoint.parse(url)


def test_keys_are_not_shown() -> None:
    endpoint = Endpoint(headers={"authorization": "Bearer secret"})
    assert "secret" not in f"{endpoint} {endpoint!r}"


@pytest.mark.parametrize("begun", [b"", CHUNKED + chunk(b"data: a\n\n")])
def test_lines_are_broken_off_before_their_answers_begin_and_after(begun: bytes) -> None:
    async def main() -> None:
        lines = Lines()
        asked = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(begun)
            asked.set()
            await reader.read()

        async with server(silent) as endpoint:

            async def ask() -> None:
                async with send(endpoint, Call("GET", "/"), lines) as reply:
                    await reply.read()

            task = asyncio.create_task(ask())
            await asked.wait()
            lines.drop()
            with pytest.raises(EngineUnavailable):
                await task

    asyncio.run(main())


class Poured:
    """Takes parts of a body, and has no room after each of those named."""

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


def pouring(answer: Answer, poured: Poured, call: Call = POST) -> None:
    async def main() -> None:
        async with server(answer) as endpoint, send(endpoint, call) as reply:
            await reply.pour(poured.take, poured.wait)

    asyncio.run(main())


@pytest.mark.parametrize("full_after", [[], [1], [1, 2, 3]])
def test_a_body_is_poured_out_to_its_end(full_after: list[int]) -> None:
    poured = Poured(frozenset(full_after))
    pieces = [CHUNKED, *(chunk(b"%d " % n) for n in range(50)), b"0\r\n\r\n"]
    pouring(saying(*pieces), poured)
    assert b"".join(poured.parts).split() == [b"%d" % n for n in range(50)]
    assert poured.waited == len([at for at in full_after if at <= len(poured.parts)])


def test_what_came_with_the_head_is_poured_too() -> None:
    poured = Poured()
    pouring(saying(CHUNKED + chunk(b"all of it") + b"0\r\n\r\n"), poured)
    assert poured.parts == [b"all of it"]


def test_much_that_came_with_the_head_is_poured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "ENOUGH_UNREAD", 1 << 10)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await saying(CHUNKED + chunk(b"x" * 5_000))(reader, writer)
        await asyncio.sleep(SHORT.patience.silence / 4)
        writer.write(chunk(b"y") + b"0\r\n\r\n")

    async def main() -> None:
        async with server(answer) as endpoint, send(endpoint, SHORT) as reply:
            await asyncio.sleep(SHORT.patience.silence / 2)  # nobody reads yet
            await reply.pour(poured.take, poured.wait)

    poured = Poured()
    asyncio.run(main())
    assert b"".join(poured.parts) == b"x" * 5_000 + b"y"


def test_nothing_is_poured_that_is_not_wanted() -> None:
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
def test_an_error_of_the_taker_is_the_callers(ended: bytes) -> None:
    class Fussy(Poured):
        def take(self, data: bytes) -> bool:
            raise LookupError("not this one")

    with pytest.raises(LookupError, match="not this one"):
        pouring(saying(CHUNKED + chunk(b"a") + ended), Fussy())


@pytest.mark.parametrize(
    ("pieces", "kind", "words"), [f[1:] for f in FAULTS if f[1] and f[1][0] == CHUNKED]
)
def test_faults_while_pouring(pieces: list[bytes], kind: type[DovetailError], words: str) -> None:
    with pytest.raises(kind, match=words):
        pouring(saying(*pieces), Poured())


def test_silence_while_pouring() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await saying(CHUNKED, chunk(b"a"))(reader, writer)
        await reader.read()

    poured = Poured()
    with pytest.raises(EngineTimeout, match=r"was silent for 0\.05 s"):
        pouring(silent, poured, SHORT)
    assert poured.parts == [b"a"]


def test_who_has_no_room_does_not_make_the_server_silent() -> None:
    class Slow(Poured):
        async def wait(self) -> bool:
            await asyncio.sleep(3 * SHORT.patience.silence)
            return await super().wait()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await saying(CHUNKED, chunk(b"a"))(reader, writer)
        await asyncio.sleep(SHORT.patience.silence / 2)
        writer.write(chunk(b"b") + b"0\r\n\r\n")

    poured = Slow(frozenset([1]))
    pouring(answer, poured, SHORT)
    assert b"".join(poured.parts) == b"ab"
