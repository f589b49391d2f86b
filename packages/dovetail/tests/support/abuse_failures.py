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
