"""Rejected WebSockets and rejected messages."""

import json
import logging
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from http_fixture import NAME, read_reply, run, serving
from websocket_fixture import HANDSHAKE, event, refusal, request_response, socket_to, text_of, until

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.http.options import HttpOptions, WebSocketOptions

CREATE = '{"type":"response.create",'
FIELDS = f'"model":"{NAME}","input":"Hi"'


def test_key_is_required_at_the_handshake() -> None:
    keys = ApiKeys(["secret"], [ApiKey("team-a", sha256(b"theirs").digest())])

    async def scene() -> None:
        async with serving(HttpOptions(keys=keys)) as stage:
            for headers in ({}, {"authorization": "Bearer wrong"}):
                status, _, body = await refusal(stage, **headers)
                assert status == 401
                assert body["error"]["code"] == "invalid_api_key"
            async with socket_to(stage, authorization="Bearer theirs") as socket:
                assert text_of(await request_response(socket)) == "Hello."
            ends = [await stage.ended.get() for _ in range(4)]
            assert [(end["status"], end.get("tenant")) for end in ends] == [
                *[(401, None)] * 2,
                *[(101, "team-a"), (200, "team-a")],
            ]

    run(scene)


def test_rejected_websocket_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is the throttled line of unauthenticated clients."""

    async def scene() -> None:
        async with serving(HttpOptions(keys=ApiKeys(["secret"]))) as stage:
            with caplog.at_level(logging.INFO):
                assert (await refusal(stage))[0] == 401
                await stage.ended.get()
        messages = [one.getMessage() for one in caplog.records if one.name.startswith("dovetail")]
        assert messages == ["request_finished"]

    run(scene)


def test_revoked_key_is_rejected_on_an_open_websocket(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    lines = [f"{name}:{sha256(name.encode()).hexdigest()}\n" for name in ("ours", "theirs")]
    path.write_text("".join(lines))
    keys = ApiKeys(file=path)

    async def scene() -> None:
        async with (
            serving(HttpOptions(keys=keys)) as stage,
            socket_to(stage, authorization="Bearer theirs") as socket,
        ):
            assert text_of(await request_response(socket)) == "Hello."
            path.write_text(lines[0])
            keys.reload()
            (error,) = await request_response(socket)
            assert (error["status"], error["error"]["code"]) == (401, "invalid_api_key")

    run(scene)


def test_only_one_path_supports_websockets() -> None:
    async def scene() -> None:
        async with serving() as stage:
            status, _, body = await refusal(stage, "/v1/nothing")
            assert (status, body["error"]["type"]) == (404, "invalid_request_error")
            assert (await refusal(stage, "/v1/chat/completions"))[0] == 426

    run(scene)


def test_disabled_websockets_make_clients_use_http_immediately() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(websockets=False)) as stage:
            status, headers, body = await refusal(stage)
            assert (status, headers["upgrade"]) == (426, "HTTP/1.1")
            assert "use HTTP" in body["error"]["message"]

    run(scene)


def test_web_pages_are_rejected() -> None:
    """Browsers send the origin of the page, and would let it read all output of the model."""

    async def scene() -> None:
        async with serving() as stage:
            for origin in ("https://evil.example", f"http://127.0.0.1:{stage.port}", "null"):
                status, _, body = await refusal(stage, origin=origin)
                assert status == 403
                assert "Web pages" in body["error"]["message"]

    run(scene)


def test_number_of_websockets_is_limited() -> None:
    options = HttpOptions(websocket_options=WebSocketOptions(max_connections=1))

    async def scene() -> None:
        async with serving(options) as stage:
            async with socket_to(stage):
                assert stage.metric("dovetail_websocket_connections") == 1
                status, headers, _ = await refusal(stage)
                assert (status, headers["retry-after"]) == (503, "5")
            await until(lambda: not stage.metric("dovetail_websocket_connections"))
            async with socket_to(stage) as socket:
                assert text_of(await request_response(socket)) == "Hello."

    run(scene)


BAD: list[tuple[str | bytes, int, str | None]] = [
    ("", 400, None),
    ("hello", 400, None),
    ("[]", 400, None),
    ("{" + FIELDS + "}", 400, "type"),
    ('{"type":"session.update",' + FIELDS + "}", 400, "type"),
    ('{"type":7,' + FIELDS + "}", 400, "type"),
    (CREATE + '"input":"Hi"}', 400, "model"),
    (CREATE + '"model":"none","input":"Hi"}', 404, "model"),
    (CREATE + '"background":true,' + FIELDS + "}", 400, "background"),
    (CREATE + '"generate":"no",' + FIELDS + "}", 400, "generate"),
    (CREATE + '"stream_id":1,' + FIELDS + "}", 400, "stream_id"),
    (CREATE + '"stream_id":"",' + FIELDS + "}", 400, "stream_id"),
    (CREATE + '"stream_id":"' + "x" * 200 + '",' + FIELDS + "}", 400, "stream_id"),
    (CREATE + '"client_metadata":[1],' + FIELDS + "}", 400, "client_metadata"),
    (CREATE + '"tools":' + "[" * 100_000 + "]" * 100_000 + "," + FIELDS + "}", 400, None),
    (CREATE + '"temperature":1e999,' + FIELDS + "}", 400, None),
    (b"\xff\xfe", 400, None),
]


def test_invalid_messages() -> None:
    """Each message gets an error that states the reason, and the connection stays open."""

    async def scene() -> None:
        async with serving() as stage, socket_to(stage) as socket:
            for sent, status, param in BAD:
                await socket.send(sent)
                error = await event(socket)
                assert (error["type"], error["status"]) == ("error", status), error
                assert error["error"]["type"] == "invalid_request_error"
                assert error["error"]["param"] == param, error
                assert text_of(await request_response(socket)) == "Hello."

    run(scene)


@pytest.mark.parametrize(
    "sent",
    [
        HANDSHAKE + b"x-long: " + b"x" * 10_000 + b"\r\n\r\n",
        HANDSHAKE.replace(b"GET", b"POST") + b"\r\n",
        HANDSHAKE.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"short") + b"\r\n",
        HANDSHAKE.replace(b"13", b"7") + b"\r\n",
    ],
)
def test_invalid_handshake_is_rejected(sent: bytes) -> None:
    async def scene() -> None:
        async with serving() as stage:
            reader, writer = await stage.connect()
            writer.write(sent)
            raw = await reader.read()
            assert int(raw.split(b" ")[1]) in (400, 426)
            writer.close()

    run(scene)


def test_no_websocket_opens_while_a_response_is_pending() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script("Hello.")
            body = json.dumps({"model": NAME, "input": "Hi"}).encode()
            reader, writer = await stage.connect()
            first = b"POST /v1/responses HTTP/1.1\r\nhost: [::1]\r\ncontent-length: %d\r\n\r\n%b"
            writer.write(first % (len(body), body) + HANDSHAKE + b"\r\n")
            reply = await read_reply(reader)
            assert reply.status == 200
            assert await reader.read() == b""
            assert stage.metric("dovetail_websocket_connections") == 0
            writer.close()

    run(scene)


def test_server_without_denial_responses_only_rejects() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=ApiKeys(["secret"]))) as stage:
            sent: list[Any] = []
            scope: dict[str, Any] = {"type": "websocket", "path": "/v1/responses", "headers": []}

            async def receive() -> Any:
                return {"type": "websocket.connect"}

            async def send(message: Any) -> None:
                sent.append(message)

            await stage.app(scope, receive, send)
            assert sent == [{"type": "websocket.close"}]

    run(scene)
