"""The memory of requests in a process is bounded, however they arrive."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from background_fixture import Gate
from http_fixture import ALIAS, Plan, Stage, head, read_reply, run, serving
from websocket_fixture import event, send_request, socket_to, until

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.cli import server_runner
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http import memory
from dovetail.http.memory import request_memory
from dovetail.http.options import HttpOptions
from dovetail.settings.config import Config

LIMIT = 200_000
LARGE = "x" * 90_000  # in a field that is not rendered: the context window is small
OPTIONS = HttpOptions(max_body_bytes=LIMIT)


def bodies(padding: str = LARGE, **more: Any) -> dict[str, dict[str, Any]]:
    """The same body for each API."""
    turns = [{"role": "user", "content": "Hi", "padding": padding}]
    return {
        "/v1/messages": {"model": ALIAS, "max_tokens": 9, "messages": turns, **more},
        "/v1/chat/completions": {"model": ALIAS, "messages": turns, **more},
        "/v1/responses": {"model": ALIAS, "input": turns, **more},
    }


@pytest.fixture(autouse=True)
def budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory for two large requests."""
    monkeypatch.setattr(request_memory, "max_bytes", 250_000)
    yield
    assert request_memory.total_bytes == 0  # all memory must be released


async def begun(stage: Stage, path: str = "/v1/messages", **more: Any) -> asyncio.StreamWriter:
    """Start a request that runs until its client disconnects."""
    body = json.dumps(bodies(stream=True, **more)[path]).encode()
    before = stage.engine.running
    _, writer = await stage.connect()
    writer.write(head("POST", path, len(body)) + body)
    await until(lambda: stage.engine.running > before)
    return writer


def test_no_tenant_takes_more_than_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is one of three large requests here."""
    monkeypatch.setattr(request_memory, "max_bytes", 300_000)
    keys = ApiKeys(hashed=[ApiKey(name, sha256(name.encode()).digest()) for name in ("a", "b")])

    async def scene() -> None:
        async with serving(replace(OPTIONS, keys=keys, max_body_bytes=100_000)) as stage:
            Gate(stage)
            body = json.dumps(bodies(stream=True)["/v1/messages"]).encode()
            writers: list[asyncio.StreamWriter] = []
            for key in ("a", "b"):
                _, writer = await stage.connect()
                sent = head("POST", "/v1/messages", len(body), {"x-api-key": key})
                writer.write(sent + body)
                writers.append(writer)
                await until(lambda: stage.engine.running == len(writers))
                reply = await stage.request("POST", "/v1/messages", body, x_api_key=key)
                assert reply.status == 503
            for writer in writers:
                writer.close()
            await until(lambda: request_memory.total_bytes == 0)
            assert not request_memory.bytes_by_tenant

    run(scene)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
def test_running_requests_share_a_memory_limit(path: str) -> None:
    async def scene() -> None:
        async with serving(OPTIONS) as stage:
            Gate(stage)
            writers = [await begun(stage, path) for _ in range(2)]
            assert 180_000 < request_memory.total_bytes < 190_000
            assert stage.metric("dovetail_held_body_bytes") == request_memory.total_bytes
            for other, body in bodies().items():
                reply = await stage.request("POST", other, body)
                assert (reply.status, reply.headers["retry-after"]) == (503, "2")
                kinds = {"overloaded_error", "server_error"}
                assert reply.json["error"]["type"] in kinds
            line = await stage.ended.get()
            assert (line["status"], line["reason"]) == (503, "held_bytes")
            limited = stage.metric("dovetail_rate_limited_requests_total", reason="held_bytes")
            assert limited == 3
            packed = gzip.compress(json.dumps(bodies()[path]).encode())
            reply = await stage.request("POST", path, packed, content_encoding="gzip")
            assert reply.status == 503
            # Small requests are limited by number, so large requests do not lock them out.
            assert (await stage.request("POST", "/v1/tokenize", {"prompt": "x"})).status == 200
            writers[0].close()
            await until(lambda: request_memory.total_bytes < 100_000)
            writers.append(await begun(stage, path))
            for writer in writers[1:]:
                writer.close()
            await until(lambda: request_memory.total_bytes == 0)

    run(scene)


def test_continued_conversation_counts_as_part_of_the_request() -> None:
    async def scene() -> None:
        async with serving(OPTIONS) as stage:
            stored = (await stage.request("POST", "/v1/responses", bodies()["/v1/responses"])).json
            assert request_memory.total_bytes == 0
            gate = Gate(stage)
            small = bodies("", previous_response_id=stored["id"])["/v1/responses"]
            waiting = [
                asyncio.create_task(stage.request("POST", "/v1/responses", small)) for _ in range(3)
            ]
            (refused,), others = await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
            assert (await refused).status == 503
            assert request_memory.total_bytes > 180_000
            reply = await stage.request("POST", "/v1/responses/input_tokens", small)
            assert reply.status == 503
            gate.opened.set()
            assert [(await one).status for one in others] == [200, 200]

    run(scene)


def test_background_responses_are_counted_until_they_finish() -> None:
    async def scene() -> None:
        async with serving(OPTIONS) as stage:
            gate = Gate(stage)
            body = bodies(background=True)["/v1/responses"]
            for status in (200, 200, 503):
                assert (await stage.request("POST", "/v1/responses", body)).status == status
            assert request_memory.total_bytes > 180_000
            gate.opened.set()
            await until(lambda: request_memory.total_bytes == 0)
            assert gate.ended == 2

    run(scene)


def test_websocket_messages_are_counted() -> None:
    async def scene() -> None:
        async with serving(OPTIONS) as stage:
            Gate(stage)
            writer = await begun(stage)
            async with socket_to(stage) as one, socket_to(stage) as other:
                await send_request(one, padding=LARGE)
                await until(lambda: stage.engine.running == 2)
                await send_request(other, padding=LARGE)
                error = await event(other)
                assert (error["type"], error["status"]) == ("error", 503)
                assert error["headers"]["retry-after"] == "2"
                for _ in range(2):  # behind the first: one message waits, another would wait
                    await send_request(one, padding=LARGE)
                while (error := await event(one))["type"] != "error":
                    pass
                assert error["status"] == 429
            writer.close()
            await until(lambda: request_memory.total_bytes == 0)

    run(scene)


def test_single_request_is_always_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_memory, "max_bytes", 1)

    async def scene() -> None:
        async with serving(OPTIONS) as stage:
            for path, body in bodies().items():
                assert (await stage.request("POST", path, body)).status == 200

    run(scene)


@pytest.mark.parametrize("sent", [b"{", b'{"model": 1}', b"\xff" * 90_000])
def test_memory_of_rejected_requests_is_released(sent: bytes) -> None:
    async def scene() -> None:
        async with serving(OPTIONS) as stage:
            for path in bodies():
                assert (await stage.request("POST", path, sent)).status == 400
                assert request_memory.total_bytes == 0
            reader, writer = await stage.connect()
            writer.write(head("POST", "/v1/messages", LIMIT + 1))
            assert (await read_reply(reader)).status == 413
            writer.close()

    run(scene)


def test_setting_applies_to_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(server_runner, "App", stop)
    front: Any = server_runner.ServerFrontend(OPTIONS, None, Any, Any, [])  # type: ignore[arg-type]
    service: Any = None
    for max_bytes in (4711, None):
        with pytest.raises(Stop):
            server_runner.serve_in_process(
                replace(Config(), max_held_bytes=max_bytes), front, service, lambda: None
            )
        assert request_memory.max_bytes == max_bytes


def test_memory_of_long_outputs_is_returned_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator would keep it. Short outputs are not counted, however many there are."""
    trims: list[int] = []
    monkeypatch.setattr(memory, "_malloc_trim", trims.append)
    monkeypatch.setattr(memory, "_OUTPUT_TRIM_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(memory, "_MIN_TRIMMED_BYTES", 2 * 100 * 64)
    monkeypatch.setattr(request_memory, "long_output_tokens", 100)
    monkeypatch.setattr(request_memory, "long_output_bytes", 0)

    async def scene() -> None:
        async with serving() as stage:
            for tokens, total in ((99, 0), (99, 0), (99, 0), (100, 100), (100, 0)):
                stage.engine.plan = _generates(stage, tokens)
                body = {"model": ALIAS, "messages": [{"role": "user", "content": "Hi"}]}
                reply = await stage.request("POST", "/v1/chat/completions", body)
                assert reply.json["usage"]["completion_tokens"] >= tokens
                assert request_memory.long_output_bytes // 64 // 100 * 100 == total
            await until(lambda: trims == [0])

    run(scene)


def _generates(stage: Stage, count: int) -> Plan:
    (word,) = stage.engine.tokenizer.encode("x")

    async def plan(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        yield TokenDelta([word] * (count - 1) + [stage.engine.stop_id], finish="stop")

    return plan
