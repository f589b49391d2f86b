"""Requests as browsers send them for foreign pages, over each API."""

import json
from typing import Any

import pytest
from http_fixture import NAME, read_reply, run, serving
from websocket_fixture import HANDSHAKE, refusal, request_response, socket_to, text_of

from dovetail.access.auth import ApiKeys
from dovetail.access.browser import BrowserPolicy
from dovetail.http.options import HttpOptions

APP = "https://app.example"
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
BODY = json.dumps({"model": NAME, "max_tokens": 9, "messages": MESSAGES}).encode()
PATHS = ["/v1/messages", "/v1/chat/completions", "/v1/responses"]


def error_type(body: Any) -> str:
    return str(body["error"]["type"])


@pytest.mark.parametrize("path", PATHS)
def test_foreign_page_cannot_generate(path: str) -> None:
    """Browsers send a body of text/plain without a preflight request."""

    async def scene() -> None:
        async with serving() as stage:
            for headers in (
                {"origin": "https://evil.example"},
                {"origin": "null"},
                {"host": f"evil.example:{stage.port}"},
                {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
            ):
                reply = await stage.request(
                    "POST", path, BODY, content_type="text/plain", **headers
                )
                assert reply.status == 403
                assert error_type(reply.json) == (
                    "permission_error" if path == "/v1/messages" else "invalid_request_error"
                )
                assert not any(name.startswith("access-control-") for name in reply.headers)
            assert not stage.engine.requests

    run(scene)


def test_foreign_page_cannot_read_models_or_metrics() -> None:
    async def scene() -> None:
        async with serving() as stage:
            for path in ("/v1/models", "/metrics", "/health", "/openapi.json", "/", "/v1/nothing"):
                for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
                    assert (await stage.request("GET", path, b"", **headers)).status == 403
                assert (await stage.request("GET", path)).status in (200, 404)
            preflight = await stage.request(
                "OPTIONS", "/v1/messages", origin=APP, access_control_request_method="POST"
            )
            assert preflight.status == 403

    run(scene)


def test_foreign_host_cannot_open_a_websocket() -> None:
    async def scene() -> None:
        async with serving() as stage:
            reader, writer = await stage.connect()
            writer.write(HANDSHAKE.replace(b"[::1]", b"evil.example") + b"\r\n")
            reply = await read_reply(reader)
            assert (reply.status, error_type(reply.json)) == (403, "invalid_request_error")
            writer.close()

    run(scene)


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://evil.example/v1/models", "localhost", 403),
        ("http://evil.example:80/v1/models?a=1", "localhost", 403),
        ("HTTPS://Evil.Example/v1/models", "127.0.0.1", 403),
        ("http://localhost/v1/models", "evil.example", 403),
        ("http://127.0.0.1:1/v1/models?a=http://evil@x/", "localhost", 200),
        ("http://[::1]:8000/v1/models", "localhost", 200),
        ("http://localhost/v1/models", "127.0.0.1, evil.example", 403),
        ("http://localhost", "localhost", 200),
        ("http://localhost?a=1", "localhost", 200),
        ("http://localhost@evil.example/v1/models", "localhost", 400),
        ("http://evil.example@localhost/v1/models", "localhost", 400),
        ("http:///v1/models", "localhost", 400),
    ],
)
def test_host_of_an_absolute_url_is_checked_like_the_host_header(
    target: str, host: str, status: int
) -> None:
    async def scene() -> None:
        async with serving() as stage:
            assert (await stage.request("GET", target, host=host)).status == status

    run(scene)


def test_absolute_url_of_a_foreign_host_cannot_open_a_websocket() -> None:
    async def scene() -> None:
        async with serving() as stage:
            for target, status in ((b"http://evil.example/v1/responses", 403), (b"/v1/x", 404)):
                reader, writer = await stage.connect()
                writer.write(HANDSHAKE.replace(b"/v1/responses", target) + b"\r\n")
                assert (await read_reply(reader)).status == status
                writer.close()

    run(scene)


def test_allowed_origin_gets_cors_headers() -> None:
    options = HttpOptions(browser_policy=BrowserPolicy(allowed_origins=[APP]))

    async def scene() -> None:
        async with serving(options) as stage:
            preflight = await stage.request(
                "OPTIONS",
                "/v1/chat/completions",
                origin=APP,
                access_control_request_method="POST",
                access_control_request_headers="content-type",
            )
            assert preflight.status == 204
            assert preflight.headers["access-control-allow-origin"] == APP
            assert preflight.headers["access-control-allow-headers"] == "content-type"
            reply = await stage.request("POST", "/v1/chat/completions", BODY, origin=APP)
            assert reply.status == 200
            assert reply.headers["access-control-allow-origin"] == APP
            assert reply.headers["vary"] == "origin"
            wrong = await stage.request("POST", "/v1/chat/completions", b"{", origin=APP)
            assert wrong.status == 400
            assert wrong.headers["access-control-allow-origin"] == APP
            other = await stage.request("POST", "/v1/chat/completions", BODY, origin=f"{APP}.evil")
            assert other.status == 403
            assert "access-control-allow-origin" not in other.headers
            async with socket_to(stage, origin=APP) as socket:
                assert text_of(await request_response(socket)) == "Hello."

    run(scene)


def test_key_replaces_the_checks() -> None:
    """A page does not have the key, and programs may use any name for the server."""

    async def scene() -> None:
        async with serving(HttpOptions(keys=ApiKeys(["secret"]))) as stage:
            foreign = {"origin": "https://evil.example", "host": "models.example"}
            assert (await stage.request("GET", "/v1/models", b"", **foreign)).status == 401
            reply = await stage.request("GET", "/v1/models", b"", x_api_key="secret", **foreign)
            assert reply.status == 200
            assert "access-control-allow-origin" not in reply.headers
            assert (await refusal(stage, authorization="Bearer secret", origin=APP))[0] == 403

    run(scene)
