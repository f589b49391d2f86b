"""Rate limits of keys over HTTP: how the official SDKs handle them, and what is charged."""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from http_fixture import NAME, Stage, head, run, serving
from websocket_fixture import request_response, socket_to

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.access.limits import MemoryLimitStore, RateLimits
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http.options import HttpOptions
from dovetail.telemetry.log_throttle import DEFAULT_MAX_LINES, LogThrottle
from dovetail_model import EngineUnavailable

MESSAGE: Any = [{"role": "user", "content": "Hi"}]
CHAT_BODY = {"model": NAME, "messages": MESSAGE}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {**CHAT_BODY, "max_tokens": 50},
    "/v1/chat/completions": CHAT_BODY,
    "/v1/completions": {"model": NAME, "prompt": "Hi"},
    "/v1/responses": {"model": NAME, "input": "Hi"},
}


def digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


@dataclass
class Desk:
    """A server with a key with limits and another without, and the limiter's state."""

    stage: Stage
    book: MemoryLimitStore

    async def request(self, path: str, key: str = "key", **more: Any) -> Any:
        return await self.stage.request("POST", path, {**BODIES[path], **more}, x_api_key=key)

    def exhaust(self, seconds: float) -> None:
        """Use up all requests of this minute; the next is possible in `seconds`."""
        with self.book.lock(digest("key")) as row:
            row.requests = time.monotonic() + 59.0 + seconds

    def owed(self) -> int:
        """Return the charged tokens that are not refilled yet, at one per minute and key."""
        with self.book.lock(digest("key")) as row:
            return max(0, math.ceil((row.tokens - time.monotonic()) / 60))

    def inside(self) -> int:
        with self.book.lock(digest("key")) as row:
            return row.in_flight

    def limited(self, reason: str) -> float:
        return self.stage.metric("dovetail_rate_limited_requests_total", reason=reason)


@asynccontextmanager
async def desk(**limits: int) -> AsyncIterator[Desk]:
    book = MemoryLimitStore()
    keys = ApiKeys(
        hashed=[ApiKey("a", digest("key"), RateLimits(**limits)), ApiKey("b", digest("other"))]
    )
    async with serving(HttpOptions(keys=keys, limit_store=book)) as stage:
        yield Desk(stage, book)


@pytest.mark.parametrize("path", BODIES)
def test_exceeded_limit_in_each_dialect(path: str) -> None:
    async def scene() -> None:
        async with desk(requests=2) as at:
            for left in ("1", "0"):
                reply = await at.request(path)
                assert reply.status == 200
                assert _request_limits(reply.headers) == ("2", left)
            reply = await at.request(path)
            assert reply.status == 429
            assert 0 < int(reply.headers["retry-after"]) <= 30
            assert _request_limits(reply.headers) == ("2", "0")
            error = reply.json["error"]
            assert error["type"] == "rate_limit_error"
            assert error.get("code", "rate_limit_exceeded") == "rate_limit_exceeded"
            assert "2 requests per minute" in error["message"]
            assert at.limited("requests") == 1
            assert len(at.stage.engine.requests) == 2
            reply = await at.request(
                path, key="other"
            )  # which has no limits, and gets no headers about them
            assert reply.status == 200
            assert not [name for name in reply.headers if "ratelimit" in name]

    run(scene)


def _request_limits(headers: dict[str, str]) -> tuple[str, str]:
    """Return the request limit and the remaining requests from the headers of either API."""
    if "anthropic-ratelimit-requests-limit" in headers:
        reset = datetime.fromisoformat(headers["anthropic-ratelimit-requests-reset"].upper())
        assert abs((reset - datetime.now(UTC)).total_seconds()) < 100
        form = "anthropic-ratelimit-requests-{}"
    else:
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        form = "x-ratelimit-{}-requests"
    return headers[form.format("limit")], headers[form.format("remaining")]


def test_rejected_streaming_response_is_a_failed_stream() -> None:
    """Codex waits and retries after this error, and gives up on a 429."""

    async def scene() -> None:
        async with desk(requests=1) as at:
            client = at.stage.openai("key")
            for kinds in (["response.completed"], ["response.failed"]):
                stream = await client.responses.create(model=NAME, input="Hi", stream=True)
                events: list[Any] = [event async for event in stream]
                assert [events[-1].type] == kinds
            assert events[-1].response.error.code == "rate_limit_exceeded"
            assert "try again in" in events[-1].response.error.message
            [_, line] = [await at.stage.ended.get() for _ in range(2)]
            assert (line["status"], line["error"]) == (429, "rate_limited")
            assert line["reason"] == "requests"

    run(scene)


def test_rejected_request_is_not_decoded_or_resolved() -> None:
    """Neither its items nor its history are processed: else the limit would not limit the cost."""

    async def scene() -> None:
        async with desk(requests=1) as at:
            body: Any = {"model": NAME, "input": "Hi", "stream": True}
            reply = await at.stage.request("POST", "/v1/responses", body, x_api_key="key")
            assert b'"response.completed"' in reply.body
            body |= {"previous_response_id": "resp_none", "input": [{"type": "nothing"}]}
            reply = await at.stage.request("POST", "/v1/responses", body, x_api_key="key")
            assert reply.status == 200
            assert b'"rate_limit_exceeded"' in reply.body
            body["stream"] = False
            reply = await at.stage.request("POST", "/v1/responses", body, x_api_key="key")
            assert reply.status == 429

    run(scene)


def test_sdks_raise_a_rate_limit_error() -> None:
    async def scene() -> None:
        async with desk(requests=1) as at:
            at.exhaust(30)
            with pytest.raises(anthropic.RateLimitError):
                await _anthropic(at.stage.anthropic("key"))
            client = at.stage.openai("key")
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(model=NAME, messages=MESSAGE)
            assert refused.value.code == "rate_limit_exceeded"
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(model=NAME, messages=MESSAGE, stream=True)
            with pytest.raises(openai.RateLimitError):
                await client.responses.create(model=NAME, input="Hi")
            assert not at.stage.engine.requests

    run(scene)


async def _anthropic(client: anthropic.AsyncAnthropic) -> None:
    await client.messages.create(model=NAME, max_tokens=9, messages=MESSAGE)


@pytest.mark.parametrize("api", ["messages", "chat", "responses"])
def test_sdk_that_honors_retry_after_succeeds(api: str) -> None:
    async def scene() -> None:
        async with desk(requests=60) as at:
            at.exhaust(1.9)
            if api == "messages":
                await _anthropic(at.stage.anthropic("key").with_options(max_retries=1))
            else:
                client = at.stage.openai("key").with_options(max_retries=1)
                if api == "chat":
                    await client.chat.completions.create(model=NAME, messages=MESSAGE)
                else:
                    await client.responses.create(model=NAME, input="Hi")
            assert at.limited("requests") == 1
            assert len(at.stage.engine.requests) == 1

    run(scene)


@pytest.mark.parametrize("api", ["messages", "chat"])
def test_restarting_engine_is_retried(api: str) -> None:
    """The first request is rejected with Retry-After; the SDK's second succeeds."""

    async def scene() -> None:
        async with serving() as stage:

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                if len(stage.engine.requests) == 1:
                    raise EngineUnavailable("http://10.0.0.7:8000 has died")
                yield TokenDelta([stage.engine.stop_id], finish="stop")

            stage.engine.plan = play
            if api == "messages":
                await _anthropic(stage.anthropic().with_options(max_retries=1))
            else:
                client = stage.openai().with_options(max_retries=1)
                await client.chat.completions.create(model=NAME, messages=MESSAGE)
            assert len(stage.engine.requests) == 2

    run(scene)


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_are_charged_when_they_are_known(stream: bool) -> None:
    async def scene() -> None:
        async with desk(tokens=1) as at:
            engine = at.stage.engine
            engine.plan = engine.script("0123456789", cached=20)
            assert (await at.request("/v1/chat/completions", stream=stream)).status == 200
            prompt = len(engine.requests[0].prompt)
            assert prompt > 20
            cost = prompt - 20 + len("0123456789") + 1  # including the stop token
            assert at.owed() == cost
            assert (await at.request("/v1/chat/completions", stream=stream)).status == 429
            assert at.owed() == cost

    run(scene)


def test_overdrawn_allowance_delays_the_next_request() -> None:
    async def scene() -> None:
        async with desk(tokens=60) as at:
            at.stage.engine.plan = at.stage.engine.script("x" * 300)
            assert (await at.request("/v1/messages", max_tokens=400)).status == 200
            reply = await at.request("/v1/messages")
            assert reply.status == 429
            assert 240 < int(reply.headers["retry-after"]) < 400
            assert reply.headers["anthropic-ratelimit-tokens-remaining"] == "0"
            assert "60 tokens per minute" in reply.json["error"]["message"]
            assert at.limited("tokens") == 1

    run(scene)


def test_disconnected_client_is_charged_for_the_output() -> None:
    async def scene() -> None:
        async with desk(tokens=1) as at:
            engine, output_tokens = at.stage.engine, 40

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                for id in engine.tokenizer.encode("x" * output_tokens):
                    yield TokenDelta([id])
                await asyncio.Event().wait()

            engine.plan = play
            body = json.dumps({**CHAT_BODY, "stream": True}).encode()
            reader, writer = await at.stage.connect()
            writer.write(head("POST", "/v1/chat/completions", len(body), {"x_api_key": "key"}))
            writer.write(body)
            await reader.readuntil(b"x")
            while engine.deltas_sent < output_tokens:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)
            writer.close()
            await engine.closed.wait()
            assert (await at.stage.ended.get())["disconnected"]
            assert at.owed() == len(engine.requests[0].prompt) + output_tokens

    run(scene)


def test_request_that_an_engine_rejects_is_not_charged() -> None:
    async def scene() -> None:
        async with desk(tokens=1) as at:

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                if request.prompt:
                    raise EngineUnavailable("gone")
                yield TokenDelta([])

            at.stage.engine.plan = play
            for _ in range(3):
                assert (await at.request("/v1/messages")).status == 503
            assert at.owed() == 0

    run(scene)


def test_concurrency_is_limited() -> None:
    async def scene() -> None:
        async with desk(concurrent=2) as at:
            done = asyncio.Event()

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                await done.wait()
                yield TokenDelta([at.stage.engine.stop_id], finish="stop")

            at.stage.engine.plan = play
            inside = [asyncio.create_task(at.request("/v1/messages")) for _ in range(2)]
            while at.stage.engine.running < 2:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
            reply = await at.request("/v1/messages")
            assert (reply.status, reply.headers["retry-after"]) == (429, "2")
            assert at.limited("concurrent") == 1
            done.set()
            assert (await at.request("/v1/messages", key="other")).status == 200
            for task in inside:
                assert (await task).status == 200
            assert (await at.request("/v1/messages")).status == 200

    run(scene)


def test_rejection_of_a_full_server_is_counted_as_busy() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(max_concurrent=0, max_queued=0)) as stage:
            assert (
                await stage.request("POST", "/v1/messages", BODIES["/v1/messages"])
            ).status == 529
            assert stage.metric("dovetail_rate_limited_requests_total", reason="busy") == 1

    run(scene)


def test_endpoints_without_generation_are_not_limited() -> None:
    async def scene() -> None:
        async with desk(requests=1) as at:
            at.exhaust(30)
            for _ in range(3):
                assert (await at.stage.request("GET", "/v1/models", x_api_key="key")).status == 200
                count = await at.stage.request(
                    "POST", "/v1/messages/count_tokens", CHAT_BODY, x_api_key="key"
                )
                assert count.status == 200

    run(scene)


def test_without_keys_all_callers_share_the_limit() -> None:
    async def scene() -> None:
        keys = ApiKeys(limits=RateLimits(requests=1))
        async with serving(HttpOptions(keys=keys)) as stage:
            statuses = [
                (await stage.request("POST", path, body, x_api_key=path)).status
                for path, body in BODIES.items()
            ]
            assert statuses == [200, 429, 429, 429]

    run(scene)


def test_key_guesses_do_not_fill_the_log() -> None:
    async def scene() -> None:
        async with desk() as at:
            for _ in range(DEFAULT_MAX_LINES + 20):
                assert (
                    await at.stage.request("GET", "/v1/models", x_api_key="guess")
                ).status == 401
            assert (await at.stage.request("GET", "/nowhere")).status == 404
            assert (
                await at.request("/v1/messages")
            ).status == 200  # requests with a valid key are always logged
            lines = [at.stage.ended.get_nowait() for _ in range(at.stage.ended.qsize())]
            assert [line["status"] for line in lines] == [401] * DEFAULT_MAX_LINES + [200]
            assert at.stage.metric(
                "dovetail_requests_total",
                model="",
                endpoint="models",
                request_type="unary",
                status="401",
            ) == (DEFAULT_MAX_LINES + 20)

    run(scene)


def test_suppressed_lines_are_summarized_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        throttle = LogThrottle(max_lines=2, interval_seconds=0.01)
        assert [throttle.allow() for _ in range(5)] == [True, True, False, False, False]
        while not caplog.records:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)
        assert vars(caplog.records[0])["fields"] == {"requests": 3}
        assert throttle.allow()

    run(scene)


def test_websocket_messages_are_limited_like_requests() -> None:
    async def scene() -> None:
        async with desk(requests=1) as at, socket_to(at.stage, x_api_key="key") as socket:
            ends = [(await request_response(socket))[-1] for _ in range(2)]
            assert [end["type"] for end in ends] == ["response.completed", "response.failed"]
            assert ends[1]["response"]["error"]["code"] == "rate_limit_exceeded"
            assert "try again in" in ends[1]["response"]["error"]["message"]

    run(scene)


def test_revoked_key_ends_after_the_running_message(tmp_path: Path) -> None:
    """The connection was opened while the key was valid; later messages are rejected."""

    async def scene() -> None:
        file = tmp_path / "keys"
        file.write_text(f"a:{digest('key').hex()}\n")
        keys = ApiKeys(file=file)
        async with (
            serving(HttpOptions(keys=keys)) as stage,
            socket_to(stage, authorization="Bearer key") as socket,
        ):
            assert (await request_response(socket))[-1]["type"] == "response.completed"
            file.write_text(f"a:{digest('next').hex()}\n")
            keys.reload()
            [refused] = await request_response(socket)
            assert (refused["type"], refused["status"]) == ("error", 401)
            assert refused["error"]["code"] == "invalid_api_key"
            assert len(stage.engine.requests) == 1

    run(scene)


def test_background_response_counts_as_concurrent_until_it_finishes() -> None:
    async def scene() -> None:
        async with desk(concurrent=1, tokens=10**6) as at:
            done = asyncio.Event()

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                await done.wait()
                yield TokenDelta([at.stage.engine.stop_id], finish="stop")

            at.stage.engine.plan = play
            client = at.stage.openai("key")
            begun = await client.responses.create(model=NAME, input="Hi", background=True)
            assert begun.status in ("queued", "in_progress")
            await at.stage.engine.began.wait()
            with pytest.raises(openai.RateLimitError, match="1 concurrent request"):
                await client.responses.create(model=NAME, input="Hi")
            done.set()
            await at.stage.ended.get()
            while at.inside():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)
            await client.responses.create(model=NAME, input="Hi")

    run(scene)
