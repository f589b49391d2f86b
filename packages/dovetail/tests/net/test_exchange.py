"""One HTTP exchange over raw ASGI, as the front server and the engine servers use it."""

import asyncio
from typing import Any

import pytest

from dovetail.http.exchange import ApiExchange
from dovetail.net.exchange import MAX_HEADER_VALUE_CHARS, ClientDisconnected, Exchange, Message
from dovetail.net.response_writer import DIRECT_WRITER_EXTENSION, ResponseWriter
from dovetail_model import InvalidRequest

SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/completions"}


class Client:
    """Sends the given messages and records the response."""

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)
        self.received: list[Message] = []

    async def receive(self) -> Message:
        return self._messages.pop(0)

    async def send(self, message: Message) -> None:
        self.received.append(message)

    def exchange(self, headers: list[tuple[bytes, bytes]] | None = None, **more: Any) -> Exchange:
        return Exchange({**SCOPE, "headers": headers or [], **more}, self.receive, self.send)


class Direct:
    """A direct writer, as the server offers one."""

    full = False

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> bool:
        self.written.append(data)
        return True

    async def drain(self) -> None:
        """Return immediately: the writer is never full."""


def body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


def test_header_names_are_lower_case_and_repeated_headers_are_joined() -> None:
    exchange = Client().exchange([(b"X-A", b"1"), (b"b", b"2"), (b"x-a", b"\xe9")])
    assert exchange.headers == {"x-a": "1, \xe9", "b": "2"}


def test_exchange_reads_the_scope() -> None:
    exchange = Client().exchange(
        root_path="/v1", query_string=b"a=1&b=%20", client=("10.0.0.1", 5), extensions=None
    )
    assert (exchange.method, exchange.path) == ("POST", "/completions")
    assert (exchange.query, exchange.peer) == ({"a": "1", "b": " "}, "10.0.0.1")
    assert exchange.extensions == {}


def test_response_with_a_single_body_message() -> None:
    client = Client()
    exchange = client.exchange()
    asyncio.run(exchange.respond(404, b"{}", headers=[("x-name", "a\r\nb\xe9" + "c" * 9_999)]))
    value = (b"a??b?" + b"c" * 9_999)[:MAX_HEADER_VALUE_CHARS]
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"2"),
        (b"x-name", value),
    ]
    assert exchange.status == 404
    assert client.received == [
        {"type": "http.response.start", "status": 404, "headers": headers},
        {"type": "http.response.body", "body": b"{}", "more_body": False},
    ]


def test_api_exchange_adds_headers_to_every_response() -> None:
    client = Client()
    scope = {**SCOPE, "headers": [(b"x-request-id", b"mine")]}
    exchange = ApiExchange(scope, client.receive, client.send)
    exchange.extra_headers.append(("x-more", "1"))
    asyncio.run(exchange.start_response(200, "text/plain", [("x-own", "2")]))
    assert client.received[0]["headers"] == [
        (b"content-type", b"text/plain"),
        (b"x-request-id", b"mine"),
        (b"request-id", b"mine"),
        (b"x-more", b"1"),
        (b"x-own", b"2"),
    ]


def test_json_body_is_decoded() -> None:
    exchange = Client(body(b'{"a"', more=True), body(b":1}")).exchange()
    assert asyncio.run(exchange.read_json(dict[str, int])) == {"a": 1}


def test_body_of_another_type_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="invalid request body"):
        asyncio.run(Client(body(b'{"a":"b"}')).exchange().read_json(dict[str, int]))


def test_disconnect_within_the_body_is_raised() -> None:
    client = Client(body(b"{", more=True), {"type": "http.disconnect"})
    with pytest.raises(ClientDisconnected):
        asyncio.run(client.exchange().read_json(dict[str, int]))


def test_started_response_uses_the_direct_writer_from_the_first_part() -> None:
    async def scene() -> None:
        client, direct = Client(), Direct()
        exchange = client.exchange(extensions={DIRECT_WRITER_EXTENSION: direct})
        await exchange.start_response(200, "text/plain")
        writer = ResponseWriter(exchange)
        assert writer.write(b"a")
        assert not writer.full
        assert direct.written == [b"a"]
        assert len(client.received) == 1

    asyncio.run(scene())


def test_without_a_direct_writer_buffered_parts_are_joined() -> None:
    async def scene() -> None:
        client = Client()
        exchange = client.exchange()

        async def start() -> None:
            await exchange.start_response(200, "text/plain")

        writer = ResponseWriter(exchange, start)
        assert not writer.started
        assert not writer.write(b"a")
        assert not writer.write(b"b")
        full = [writer.full]
        await writer.drain()
        full.append(writer.full)
        assert full == [True, False]
        assert not writer.write(b"c")
        await writer.drain()
        bodies = [message["body"] for message in client.received[1:]]
        assert bodies == [b"ab", b"c"]
        assert all(message["more_body"] for message in client.received[1:])

    asyncio.run(scene())
