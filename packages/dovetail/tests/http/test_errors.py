"""Errors for keys, paths, models, context windows and limits, in the format of each API."""

import asyncio
from collections.abc import AsyncGenerator
from hashlib import sha256
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from http_fixture import NAME, Stage, run, service, serving

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.engines.engine import EngineHealth, EngineRequest, TokenDelta
from dovetail.http.app import App
from dovetail.http.options import HttpOptions
from dovetail_model import EngineError, EngineUnavailable

MESSAGE: Any = [{"role": "user", "content": "Hi"}]
KEYS = ApiKeys(["open-sesame"], [ApiKey("team-a", sha256(b"key-a").digest())])


def test_wrong_key_is_rejected_in_each_dialect() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=KEYS)) as stage:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await stage.anthropic("wrong").messages.create(
                    model=NAME, max_tokens=9, messages=MESSAGE
                )
            assert refused.value.body == {
                "type": "error",
                "error": {
                    "type": "authentication_error",
                    "message": "The API key is not valid for this server.",
                },
            }
            with pytest.raises(openai.AuthenticationError) as denied:
                await stage.openai("wrong").chat.completions.create(model=NAME, messages=MESSAGE)
            assert denied.value.code == "invalid_api_key"
            assert not stage.engine.requests

    run(scene)


def test_log_has_the_reason_of_a_rejected_key_and_never_the_key() -> None:
    gone = ApiKeys(["open-sesame"], [ApiKey("old", sha256(b"was-good").digest(), expires=1.0)])

    async def scene() -> None:
        async with serving(HttpOptions(keys=gone)) as stage:
            assert (await stage.request("GET", "/v1/models")).status == 401
            for key in ("wrong", "was-good"):
                assert (await stage.request("GET", "/v1/models", x_api_key=key)).status == 401
            lines = [await stage.ended.get() for _ in range(3)]
            assert [line["reason"] for line in lines] == ["no_key", "unknown_key", "expired_key"]
            assert not any("wrong" in str(line) or "was-good" in str(line) for line in lines)

    run(scene)


def test_valid_keys_are_accepted_and_identify_the_tenant() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=KEYS)) as stage:
            await stage.openai("key-a").chat.completions.create(model=NAME, messages=MESSAGE)
            assert (await stage.ended.get())["tenant"] == "team-a"
            await stage.anthropic("open-sesame").messages.create(
                model=NAME, max_tokens=9, messages=MESSAGE
            )
            assert "tenant" not in await stage.ended.get()
            reply = await stage.request(
                "GET", "/v1/models", x_api_key="stale", authorization="Bearer key-a"
            )
            assert reply.status == 200

    run(scene)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/health", 200),
        ("/live", 200),
        ("/ready", 200),
        ("/metrics", 200),
        ("/v1/models", 401),
        ("/openapi.json", 401),
        ("/nowhere", 404),
    ],
)
def test_public_endpoints_need_no_key(path: str, status: int) -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=KEYS)) as stage:
            assert (await stage.request("GET", path)).status == status

    run(scene)


def test_metrics_may_require_an_admin_key() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=KEYS, metrics_need_key=True)) as stage:
            assert (await stage.request("GET", "/metrics")).status == 401
            refused = await stage.request("GET", "/metrics", x_api_key="key-a")
            assert (refused.status, refused.json["error"]["code"]) == (403, "permission_denied")
            assert (await stage.request("GET", "/metrics", x_api_key="open-sesame")).status == 200
        async with serving(HttpOptions(metrics_need_key=True)) as stage:
            assert (await stage.request("GET", "/metrics")).status == 200

    run(scene)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_root_responds(method: str) -> None:
    async def scene() -> None:
        async with serving() as stage:
            reply = await stage.request(method, "/")
            assert reply.status == 200
            assert bool(reply.body) == (method == "GET")

    run(scene)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "kind"),
    [
        ("GET", "/v1/nowhere", {}, 404, "invalid_request_error"),
        ("GET", "/v1/nowhere", {"anthropic_version": "1"}, 404, "not_found_error"),
        ("POST", "/v1/messages/batches", {}, 404, "not_found_error"),
        ("GET", "/v1/messages", {}, 405, "invalid_request_error"),
        ("PUT", "/v1/chat/completions", {}, 405, "invalid_request_error"),
        ("DELETE", "/v1/models", {}, 405, "invalid_request_error"),
        ("GET", "/v1/responses", {}, 405, "invalid_request_error"),
        ("GET", "/v1/models/un/known", {}, 404, "invalid_request_error"),
        ("GET", "/v1/models/", {"anthropic_version": "1"}, 404, "not_found_error"),
    ],
)
def test_wrong_paths_and_methods(
    method: str, path: str, headers: dict[str, str], status: int, kind: str
) -> None:
    async def scene() -> None:
        async with serving() as stage:
            reply = await stage.request(method, path, b"", **headers)
            assert reply.status == status
            assert reply.json["error"]["type"] == kind
            assert ("allow" in reply.headers) == (status == 405)

    run(scene)


def test_unknown_model_error_lists_the_known_ones() -> None:
    async def scene() -> None:
        async with serving() as stage:
            with pytest.raises(anthropic.NotFoundError, match=NAME):
                await stage.anthropic().messages.create(
                    model="gpt-9", max_tokens=9, messages=MESSAGE
                )
            with pytest.raises(openai.NotFoundError, match=NAME):
                await stage.openai().chat.completions.create(model="gpt-9", messages=MESSAGE)
            with pytest.raises(openai.NotFoundError, match=NAME):
                await stage.openai().responses.create(model="gpt-9", input="Hi")
            assert stage.metric(
                "dovetail_requests_total",
                model="",
                endpoint="messages",
                request_type="unary",
                status="404",
            )

    run(scene)


def test_context_overflow_has_the_error_that_each_client_expects() -> None:
    async def scene() -> None:
        async with serving(max_context=20) as stage:
            with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens"):
                await stage.anthropic().messages.create(model=NAME, max_tokens=9, messages=MESSAGE)
            client = stage.openai()
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model=NAME, messages=MESSAGE, stream=True)
            assert refused.value.code == "context_length_exceeded"
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(model=NAME, input="Hi")
            stream = await client.responses.create(model=NAME, input="Hi", stream=True)
            events: list[Any] = [event async for event in stream]
            assert events[-1].type == "response.failed"
            assert events[-1].response.error.code == "context_length_exceeded"

    run(scene)


def test_max_tokens_is_clamped_to_the_context_window() -> None:
    async def scene() -> None:
        async with serving(max_context=200) as stage:
            await stage.anthropic().messages.create(model=NAME, max_tokens=20_000, messages=MESSAGE)
            request = stage.engine.requests[0]
            assert request.max_tokens == 200 - len(request.prompt)

    run(scene)


def test_excess_request_gets_retry_after() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(max_concurrent=1, max_queued=0)) as stage:
            done = asyncio.Event()

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                await done.wait()
                yield TokenDelta([stage.engine.stop_id], finish="stop")

            stage.engine.plan = play
            client = stage.openai()
            first = asyncio.create_task(
                client.chat.completions.create(model=NAME, messages=MESSAGE)
            )
            await stage.engine.began.wait()
            await _refused(stage)
            done.set()
            await first
            await client.chat.completions.create(model=NAME, messages=MESSAGE)

    run(scene)


async def _refused(stage: Stage) -> None:
    chat = {"model": NAME, "messages": MESSAGE}
    reply = await stage.request("POST", "/v1/chat/completions", chat)
    assert (reply.status, reply.headers["retry-after"]) == (429, "2")
    reply = await stage.request("POST", "/v1/messages", {**chat, "max_tokens": 9, "stream": True})
    assert (reply.status, reply.headers["retry-after"]) == (529, "2")
    assert reply.json["error"]["type"] == "overloaded_error"
    responses: dict[str, Any] = {"model": NAME, "input": "Hi"}
    reply = await stage.request("POST", "/v1/responses", {**responses, "stream": True})
    assert reply.status == 200
    assert b"rate_limit_exceeded" in reply.body
    assert b"try again in 2s" in reply.body
    assert (await stage.request("POST", "/v1/responses", responses)).status == 429
    assert {(await stage.ended.get())["reason"] for _ in range(4)} == {"busy"}


def test_unknown_previous_response_is_an_error() -> None:
    async def scene() -> None:
        async with serving() as stage:
            with pytest.raises(openai.BadRequestError, match="resp_1") as refused:
                await stage.openai().responses.create(
                    model=NAME, input="Hi", previous_response_id="resp_1"
                )
            assert refused.value.code == "previous_response_not_found"
            assert refused.value.param == "previous_response_id"

    run(scene)


def test_engine_that_is_not_ready() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.state = EngineHealth(False, "loading")
            for path in ("/health", "/ready"):
                reply = await stage.request("GET", path)
                assert reply.status == 503
                assert reply.json["engines"][0]["detail"] == "loading"
            assert (await stage.request("GET", "/live")).status == 200

    run(scene)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("kind", [EngineError, EngineUnavailable])
def test_engine_address_is_shown_to_no_client(kind: type[EngineError], after: int) -> None:
    """Neither before the first token nor after it, however the engine fails."""

    async def scene() -> None:
        async with serving() as stage:

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                for _ in range(after):
                    yield TokenDelta(stage.engine.tokenizer.encode("a"))
                raise kind("no connection to http://engine.inside:8000/v1 (refused)")

            stage.engine.plan = play
            bodies: dict[str, Any] = {
                "/v1/messages": {"max_tokens": 9, "messages": MESSAGE},
                "/v1/chat/completions": {"messages": MESSAGE},
                "/v1/responses": {"input": "Hi"},
                "/v1/completions": {"prompt": "Hi"},
            }
            for path, body in bodies.items():
                for stream in (False, True):
                    reply = await stage.request(
                        "POST", path, {"model": NAME, "stream": stream, **body}
                    )
                    assert b"no connection to the engine (refused)" in reply.body, path
                    assert b"inside" not in reply.body

    run(scene)


@pytest.mark.parametrize("given", ["my-request-1", "", "white space", "x" * 200])
def test_requests_have_ids(given: str) -> None:
    async def scene() -> None:
        async with serving() as stage:
            headers = {"x_request_id": given} if given else {}
            reply = await stage.request("GET", "/v1/models", b"", **headers)
            request_id = reply.headers["x-request-id"]
            assert request_id == reply.headers["request-id"]
            assert (request_id == given) == (given == "my-request-1")
            assert (await stage.ended.get())["id"] == request_id

    run(scene)


def test_openapi_document_lists_every_path() -> None:
    async def scene() -> None:
        async with serving() as stage:
            document = (await stage.request("GET", "/openapi.json")).json
            known = {route.path.removesuffix("{model}") for route in stage.app.routes.all}
            assert {path.removesuffix("{model}") for path in document["paths"]} == known
            operations = [one for methods in document["paths"].values() for one in methods.values()]
            assert len({one["operationId"] for one in operations}) == len(operations)

    run(scene)


def test_documentation_lists_every_path() -> None:
    page = (Path(__file__).parents[4] / "docs" / "operations" / "endpoints.md").read_text()
    made, _ = service()
    for route in App(made).routes.all:
        path = route.path + "{model}" if route.path == "/v1/models/" else route.path
        assert f"`{route.method} {path}`" in page


def test_messages_api_can_be_disabled() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(messages_api=False)) as stage:
            assert (await stage.request("POST", "/v1/messages", {})).status == 404

    run(scene)
