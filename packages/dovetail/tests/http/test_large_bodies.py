"""Bodies that are expensive to decompress or decode do not delay other clients."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from string import ascii_letters
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from http_fixture import NAME, run, serving
from loop_steps import frozen_objects, longest_step

from dovetail.access.auth import ApiKeys
from dovetail.access.limits import RateLimits
from dovetail.http.options import HttpOptions
from dovetail_protocols import RequestLimits

PATHS = ("/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1/tokenize")
MAX_PAUSE_SECONDS = 0.5  # of CPU time; without protection, a pause takes seconds


def messages(count: int) -> bytes:
    letters = random.Random(0).choices(ascii_letters.encode(), k=count)
    all_ = b",".join(b'{"role":"user","content":"%c"}' % letter for letter in letters)
    return b'{"model":"m","max_tokens":1,"messages":[%b]}' % all_


def tools(count: int) -> bytes:
    tool = b'{"type":"function","function":{"name":"f%d","parameters":{}}}'
    all_ = b",".join(tool % at for at in range(count))
    return b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[%b]}' % all_


def unknown_list(size: int) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":[%b1]}' % (
        b"1," * (size // 2)
    )


# The bodies are built by the tests, since every process of pytest imports this module.
BODIES: dict[str, tuple[Callable[[], bytes], str, int, str]] = {
    "messages": (
        lambda: zstandard.compress(messages(500_000)),
        "zstd",
        400,
        "messages: must have",
    ),
    "tools": (
        lambda: zstandard.compress(tools(200_000)),
        "zstd",
        400,
        "tools: must have at most 2048",
    ),
    "unknown field": (
        lambda: zstandard.compress(unknown_list(62_000_000)),
        "zstd",
        413,
        "1000 times",
    ),
    "unknown list": (lambda: unknown_list(8_000_000), "identity", 400, "at most"),
    "bomb": (lambda: brotli.compress(b" " * 60_000_000, quality=1), "br", 413, "1000 times"),
    "uncompressed": (
        lambda: messages(200_000),
        "identity",
        400,
        "messages: must have at most 20000",
    ),
}


async def longest_pause(stop: asyncio.Event) -> float:
    """Measure the longest time in which the event loop did not run.

    In CPU time of all threads: one of them may hold the interpreter's lock, but other processes do
    not count.
    """
    longest, last = 0.0, time.process_time()
    while not stop.is_set():
        await asyncio.sleep(0.002)
        now = time.process_time()
        longest, last = max(longest, now - last), now
    return longest


@pytest.fixture
def _frozen() -> Iterator[None]:
    with frozen_objects():
        yield


@pytest.mark.usefixtures("_frozen")
@pytest.mark.parametrize(("build_body", "coding", "status", "text"), BODIES.values(), ids=BODIES)
def test_event_loop_continues(
    build_body: Callable[[], bytes], coding: str, status: int, text: str
) -> None:
    body = build_body()

    async def scene() -> None:
        async with serving() as stage:
            stop = asyncio.Event()
            pause = asyncio.create_task(longest_pause(stop))
            path = "/v1/chat/completions"
            reply = await stage.request("POST", path, body, content_encoding=coding)
            stop.set()
            assert reply.status == status
            assert text in reply.json["error"]["message"]
            assert await pause < MAX_PAUSE_SECONDS

    run(scene)


def call_ids(size: int, each: int, fill: str = "x-") -> bytes:
    """A history with tool calls, whose ids have `size` characters together."""
    history: list[Any] = [{"role": "user", "content": "Hi"}]
    for at in range(size // each // 2):
        id = f"call_{at}_{fill * each}"[:each]
        call = {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        history.append({"role": "assistant", "content": None, "tool_calls": [call]})
        history.append({"role": "tool", "tool_call_id": id, "content": "ok"})
    return json.dumps({"model": NAME, "messages": history}).encode()


@pytest.mark.usefixtures("_frozen")
@pytest.mark.parametrize("fill", ["x-", "é"])
def test_ids_up_to_their_limit_do_not_occupy_the_event_loop(fill: str) -> None:
    body = call_ids(4_100_000, 60_000, fill)

    async def scene() -> None:
        async with serving() as stage:
            stop = asyncio.Event()
            step = asyncio.create_task(longest_step(stop))
            reply = await stage.request("POST", "/v1/chat/completions", body)
            stop.set()
            assert reply.status == 200
            assert await step < 0.15  # 0.3 s if each character is examined in Python

    run(scene)


def chat_body(**more: Any) -> dict[str, Any]:
    return {"model": NAME, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **more}


def items(count: int) -> list[Any]:
    return [{"role": "user", "content": "Hi"}] * count


CASES: list[tuple[str, Callable[[], dict[str, Any]], str, str]] = [
    ("/v1/messages", lambda: chat_body(messages=items(4)), "messages", "items"),
    ("/v1/chat/completions", lambda: chat_body(messages=items(4)), "messages", "items"),
    ("/v1/responses", lambda: {"model": NAME, "input": items(4)}, "input", "items"),
    (
        "/v1/messages",
        lambda: chat_body(tools=[{"name": "f", "input_schema": {}}] * 3),
        "tools",
        "tools",
    ),
    (
        "/v1/messages",
        lambda: chat_body(
            messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 6}]
        ),
        "messages",
        "content blocks",
    ),
]


@pytest.mark.parametrize(("path", "body", "field", "unit"), CASES)
def test_limits_are_named_in_each_api(
    path: str, body: Callable[[], dict[str, Any]], field: str, unit: str
) -> None:
    async def scene() -> None:
        limits = RequestLimits(max_tools=2, max_messages=3, max_blocks=5)
        async with serving(HttpOptions(request_limits=limits)) as stage:
            reply = await stage.request("POST", path, json.dumps(body()).encode())
            assert reply.status == 400
            assert reply.json["error"]["message"].startswith(f"{field}: must have at most")
            assert unit in reply.json["error"]["message"]

    run(scene)


@pytest.mark.parametrize("role", ["user", "system"])
@pytest.mark.parametrize(
    ("count", "description", "message"),
    [
        (5000, "d", "messages: must have at most 2048 tools, got 5000"),
        (1, "word " * 600_000, "messages[1]: must have at most 1048576 bytes, got 3"),
    ],
)
def test_added_tools_are_limited_like_declared_ones(
    role: str, count: int, description: str, message: str
) -> None:
    def addition(at: int) -> dict[str, Any]:
        definition = {"name": f"f{at}", "description": description, "input_schema": {}}
        return {
            "type": "tool_addition",
            "tool": {"type": "tool_definition", "definition": definition},
        }

    async def scene() -> None:
        async with serving() as stage:
            added = {"role": role, "content": [addition(at) for at in range(count)]}
            body = chat_body(messages=[{"role": "user", "content": "x"}, added])
            reply = await stage.request("POST", "/v1/messages", json.dumps(body).encode())
            assert reply.status == 400
            assert reply.json["error"]["message"].startswith(message)

    run(scene)


@pytest.mark.parametrize("path", PATHS)
def test_body_decoded_in_a_thread_gets_its_response(path: str) -> None:
    """A body with many values that is within all limits."""

    async def scene() -> None:
        async with serving() as stage:
            padding = {"padding": [0] * 10_000}
            body = {"model": NAME, "input": "Hi"} if "responses" in path else chat_body()
            reply = await stage.request("POST", path, json.dumps(body | padding).encode())
            assert reply.status == 200

    run(scene)


def test_rejected_large_body_is_charged_to_its_key() -> None:
    """A key that sends large bodies reaches its limit of tokens although all are rejected."""

    async def scene() -> None:
        keys = ApiKeys(("secret",), limits=RateLimits(tokens=1000))
        async with serving(HttpOptions(keys=keys)) as stage:
            path, key = "/v1/chat/completions", "Bearer secret"
            small = json.dumps(chat_body(messages=[])).encode()
            for body, status in ((small, 400), (small, 400), (tools(30_000), 400), (small, 429)):
                reply = await stage.request("POST", path, body, authorization=key)
                assert reply.status == status

    run(scene)
