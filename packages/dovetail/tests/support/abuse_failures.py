"""Failures inside the server that every transport must report in the format of the API.

Each function runs one scenario against a server of `http_fixture` and asserts what the client gets.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

from http_fixture import NAME, Reply, Stage
from websocket_fixture import request_response, socket_to

from dovetail.engines.engine import EngineRequest, TokenDelta

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
GENERATION_BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 9, "messages": MESSAGES},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "Hi"},
    "/v1/completions": {"prompt": "Hi"},
}
#: A part of the error that ends a stream, by path.
STREAM_ERRORS = {
    "/v1/messages": b"event: error",
    "/v1/chat/completions": b'"error":{',
    "/v1/responses": b"event: response.failed",
    "/v1/completions": b'"error":{',
}
#: Above this depth the decoder itself fails, without the position.
DECODER_DEPTH = 900


class PanicException(BaseException):
    """Stands for the exception of a Rust panic, which does not derive from `Exception`."""


def is_api_error(reply: Reply) -> bool:
    """Return whether the body is an error object of one of the APIs, in JSON."""
    if not reply.headers.get("content-type", "").startswith("application/json"):
        return False
    error = json.loads(reply.body).get("error")
    return isinstance(error, dict) and bool(error.get("type")) and bool(error.get("message"))


async def request_fails_with_an_api_error(stage: Stage, path: str, *, stream: bool) -> None:
    """A request that fails before its first event gets status 500 and the error of its API."""
    body = {"model": NAME, "stream": stream, **GENERATION_BODIES[path]}
    reply = await stage.request("POST", path, body)
    assert reply.status == 500, (path, reply)
    assert is_api_error(reply), (path, reply)


async def started_stream_ends_with_an_api_error(stage: Stage, path: str) -> None:
    """A stream that fails after its first event ends with the error of its API."""

    async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        yield TokenDelta(stage.engine.tokenizer.encode("Once"))
        raise PanicException("index out of bounds")

    stage.engine.plan = play
    reply = await stage.request(
        "POST", path, {"model": NAME, "stream": True, **GENERATION_BODIES[path]}
    )
    assert reply.status == 200
    assert b"Once" in reply.body
    assert STREAM_ERRORS[path] in reply.body, reply.body


async def websocket_request_fails_with_an_event(stage: Stage) -> None:
    """A request over a WebSocket gets an error event, and the connection stays usable."""
    async with socket_to(stage) as socket:
        for _ in range(2):
            (error,) = await request_response(socket)
            assert (error["type"], error["status"]) == ("error", 500), error


async def background_response_becomes_failed(stage: Stage) -> None:
    """A background response whose generation fails is stored as `failed`."""
    client = stage.openai()
    queued = await client.responses.create(model=NAME, input="Hi", background=True)
    await stage.ended.get()
    response = await client.responses.retrieve(queued.id)
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "server_error"


def nested(levels: int) -> bytes:
    """Return the JSON of a schema of objects that is nested this deeply."""
    keys = (b"properties", b"a")
    opened = b"".join(b'{"%b":' % keys[level % 2] for level in range(levels - 1))
    return opened + b"{}" + b"}" * (levels - 1)


def deep_bodies(levels: int, **more: Any) -> dict[str, tuple[str, bytes]]:
    """Return requests with a value that is nested this deeply: path and body by the deep field."""
    value = nested(levels)
    return {
        field: (
            path,
            json.dumps({"model": NAME, **body, **more}).encode().replace(b'"DEEP"', value),
        )
        for field, (path, body) in _bodies_with("DEEP").items()
    }


def _bodies_with(schema: str) -> dict[str, tuple[str, dict[str, Any]]]:
    function = {"name": "f", "parameters": schema}
    chat, responses = "/v1/chat/completions", "/v1/responses"
    plain: dict[str, Any] = {"messages": MESSAGES}
    return {
        "tools[0].input_schema": (
            "/v1/messages",
            {**plain, "max_tokens": 9, "tools": [{"name": "f", "input_schema": schema}]},
        ),
        "tools[0].function": (
            chat,
            {**plain, "tools": [{"type": "function", "function": function}]},
        ),
        "tools[0].parameters": (
            responses,
            {"input": "Hi", "tools": [{"type": "function", **function}]},
        ),
        "chat_template_kwargs": (chat, {**plain, "chat_template_kwargs": {"x": schema}}),
        "response_format": (
            chat,
            {
                **plain,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": schema},
                },
            },
        ),
        "metadata": (responses, {"input": "Hi", "metadata": schema}),
        "messages": ("/v1/tokenize", {"messages": [{"role": "user", "content": schema}]}),
    }


async def deep_values_are_client_errors(stage: Stage, levels: int) -> None:
    """Values that are nested too deeply are a 400 that names the field."""
    for field, (path, body) in deep_bodies(levels).items():
        reply = await stage.request("POST", path, body)
        assert reply.status == 400, (field, levels, reply)
        assert is_api_error(reply)
        message = reply.json["error"]["message"]
        assert "levels deep" in message, message
        assert levels > DECODER_DEPTH or field in message, message
