"""Budgets over HTTP: warnings and rejections in each dialect, as the official SDKs handle them."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import anthropic
import openai
import pytest
from http_fixture import NAME, Stage, run, service, serving
from websocket_fixture import request_response, socket_to

from dovetail.access.auth import ApiKeys
from dovetail.access.budgets import WARNING_HEADER
from dovetail.access.key_file import ApiKey, Budgets
from dovetail.http.options import HttpOptions
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.storage.faults import StoreError
from dovetail.usage.periods import day_name, month_name, next_day, next_month
from dovetail.usage.prices import Prices
from dovetail.usage.sqlite import SqliteUsageStore
from dovetail.usage.store import SpentKey
from dovetail.usage.writer import UsageWriter

MESSAGE: Any = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": NAME, "messages": MESSAGE, "max_tokens": 50},
    "/v1/chat/completions": {"model": NAME, "messages": MESSAGE},
    "/v1/responses": {"model": NAME, "input": "Hi"},
}
TOKENS = 28  # of one such request: a token is a byte, and nothing is cached


@dataclass
class Desk:
    stage: Stage
    usage: UsageWriter

    async def request(self, path: str, key: str = "key", **more: Any) -> Any:
        return await self.stage.request("POST", path, {**BODIES[path], **more}, x_api_key=key)

    async def spent(self) -> int:
        [one] = await self.usage.read_spent([SpentKey(day_name(time.time()), "a", "laptop")])
        return one.tokens


@asynccontextmanager
async def desk(
    budgets: Budgets, tenant: Budgets | None = None, prices: Prices | None = None
) -> AsyncIterator[Desk]:
    """A server with two keys of one tenant, and one of another without budgets."""
    shared = tenant or Budgets()
    rows = [
        ApiKey("a", digest("key"), name="laptop", budgets=budgets, tenant_budgets=shared),
        ApiKey("a", digest("second"), tenant_budgets=shared),
        ApiKey("b", digest("other")),
    ]
    registry, engine = service()
    [entry] = registry.entries
    assert isinstance(entry, TokenModel)
    priced = ModelRegistry([replace(entry, prices=prices or Prices())])
    usage = UsageWriter(SqliteUsageStore(None))
    options = HttpOptions(keys=ApiKeys(hashed=rows))
    async with serving(options, registry=priced, usage=usage) as stage:
        stage.engine = engine
        yield Desk(stage, usage)


def digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


@pytest.mark.parametrize("path", BODIES)
def test_warning_then_rejection_in_each_dialect(path: str) -> None:
    async def scene() -> None:
        async with desk(Budgets(tokens_per_day=2 * TOKENS)) as at:
            for _ in range(2):
                reply = await at.request(path)
                assert reply.status == 200
                assert WARNING_HEADER not in reply.headers
            used = await at.spent()
            assert used == 2 * TOKENS
            reply = await at.request(path)
            assert reply.status == 429
            error = reply.json["error"]
            reset = datetime.fromtimestamp(next_day(time.time()), UTC)
            assert f"{reset:%Y-%m-%dT%H:%M:%SZ}" in error["message"]
            expected = "rate_limit_error" if path == "/v1/messages" else "insufficient_quota"
            assert error["type"] == expected
            wait = int(reply.headers["retry-after"])
            assert abs(wait - (reset - datetime.now(UTC)).total_seconds()) < 60
            assert reply.headers["x-should-retry"] == "false"
            assert f"used={used}; limit={2 * TOKENS}" in reply.headers[WARNING_HEADER]
            assert len(at.stage.engine.requests) == 2
            assert (await at.request(path, key="second")).status == 200
            assert (await at.request(path, key="other")).status == 200
            limited = at.stage.metric("dovetail_rate_limited_requests_total", reason="budget")
            assert limited == 1

    run(scene)


def test_warning_header_at_eighty_percent() -> None:
    async def scene() -> None:
        async with desk(Budgets(tokens_per_month=5 * TOKENS), Budgets(tokens_per_day=1000)) as at:
            seen = []
            for _ in range(6):
                reply = await at.request("/v1/messages")
                seen.append((reply.status, reply.headers.get(WARNING_HEADER, "")))
            assert [status for status, _ in seen] == [200] * 5 + [429]
            assert [bool(text) for _, text in seen] == [False] * 4 + [True] * 2
            # Header values arrive in lower case from the test's client.
            name, scope, used, limit, reset = seen[4][1].split("; ")
            assert (name, scope) == ("tokens-per-month", "scope=key")
            assert (used, limit) == (f"used={4 * TOKENS}", f"limit={5 * TOKENS}")
            month = datetime.fromtimestamp(next_month(time.time()), UTC)
            assert reset == f"reset={month:%Y-%m-%dt%H:%M:%Sz}".lower()

    run(scene)


def test_official_sdks_raise_at_once_and_do_not_retry() -> None:
    """Both SDKs retry a 429 by default, which cannot succeed until the next day."""

    async def scene() -> None:
        async with desk(Budgets(tokens_per_day=1)) as at:
            url, earlier = at.stage.url, len(at.stage.engine.requests)
            await at.request("/v1/messages")
            claude = anthropic.AsyncAnthropic(base_url=url, api_key="key", max_retries=5)
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="key", max_retries=5)
            at.stage.clients += [claude, client]
            with pytest.raises(anthropic.RateLimitError) as refused:
                await claude.messages.create(model=NAME, messages=MESSAGE, max_tokens=5)
            assert "tokens-per-day" in str(refused.value)
            for stream in (False, True):
                with pytest.raises(anthropic.RateLimitError):
                    await claude.messages.create(
                        model=NAME, messages=MESSAGE, max_tokens=5, stream=stream
                    )
                with pytest.raises(openai.RateLimitError) as chat:
                    await client.chat.completions.create(
                        model=NAME, messages=MESSAGE, stream=stream
                    )
                with pytest.raises(openai.RateLimitError) as responses:
                    await client.responses.create(model=NAME, input="Hi", stream=stream)
                assert chat.value.code == responses.value.code == "insufficient_quota"
            lines = [at.stage.ended.get_nowait() for _ in range(at.stage.ended.qsize())]
            assert [line["status"] for line in lines] == [200] + [429] * 7
            assert {line["reason"] for line in lines[1:]} == {"tokens_per_day"}
            assert len(at.stage.engine.requests) == earlier + 1

    run(scene)


def test_tenant_budget_is_shared_by_its_keys() -> None:
    async def scene() -> None:
        async with desk(Budgets(), Budgets(tokens_per_month=TOKENS + 1)) as at:
            assert (await at.request("/v1/messages")).status == 200
            warned = await at.request("/v1/messages", key="second")
            assert "scope=tenant" in warned.headers[WARNING_HEADER]
            reply = await at.request("/v1/messages")
            assert reply.status == 429
            assert reply.json["error"]["message"].startswith("The tenant of this API key")
            assert (await at.request("/v1/messages", key="other")).status == 200

    run(scene)


def test_cost_budget() -> None:
    async def scene() -> None:
        prices = Prices(prompt=1_000_000.0, output=2_000_000.0)  # 1 and 2 per token
        async with desk(Budgets(cost_per_month=40.5), prices=prices) as at:
            reply = await at.request("/v1/chat/completions")
            usage = reply.json["usage"]
            cost = usage["prompt_tokens"] + 2 * usage["completion_tokens"]
            assert WARNING_HEADER not in reply.headers
            reply = await at.request("/v1/chat/completions")
            assert f"used={cost}; limit=40.5" in reply.headers[WARNING_HEADER]
            month = SpentKey(month_name(time.time()), "a", "laptop")
            [one] = await at.usage.read_spent([month])
            assert one.cost_nanos == 2 * cost * 10**9
            assert (await at.request("/v1/chat/completions")).status == 429

    run(scene)


def test_websocket_gets_the_error_and_the_warning() -> None:
    async def scene() -> None:
        async with (
            desk(Budgets(tokens_per_day=TOKENS + 5)) as at,
            socket_to(at.stage, x_api_key="key") as socket,
        ):
            frames = [await request_response(socket) for _ in range(3)]
            kinds = [[frame["type"] for frame in one] for one in frames]
            assert "dovetail.diagnostics" not in kinds[0]
            [note] = [one for one in frames[1] if one["type"] == "dovetail.diagnostics"]
            assert note["codes"] == ["budget:tokens-per-day"]
            [refused] = frames[2]
            assert (refused["type"], refused["status"]) == ("error", 429)
            assert refused["error"]["code"] == "insufficient_quota"

    run(scene)


def test_unavailable_store_does_not_stop_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with desk(Budgets(tokens_per_day=1)) as at:

            async def fail(self: SqliteUsageStore, keys: object) -> None:
                raise StoreError("the usage store is unavailable")

            monkeypatch.setattr(SqliteUsageStore, "read_spent", fail)
            for _ in range(2):
                assert (await at.request("/v1/messages")).status == 200

    run(scene)
