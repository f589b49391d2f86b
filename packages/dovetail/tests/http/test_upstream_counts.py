"""Streams of the Messages API start with the number of input tokens, estimated if necessary."""

import json
from dataclasses import replace
from typing import Any

from http_fixture import NAME, run
from recording_upstream import relaying, respond
from upstream_environment import FakeRequest, FakeResponse

from dovetail_protocols import UpstreamApi

BODY: dict[str, Any] = {
    "model": NAME,
    "max_tokens": 100,
    "stream": True,
    "messages": [{"role": "user", "content": "word " * 400}],
    "tools": [{"name": "look_up", "input_schema": {"type": "object"}}],
}


def chat_stream(*frames: dict[str, Any]) -> FakeResponse:
    body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames) + "data: [DONE]\n\n"
    return FakeResponse(body=body.encode(), kind="text/event-stream")


def choice(text: str, finish: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]


def usages(stream: bytes) -> tuple[int, int]:
    """Return the input tokens of the first and of the last frame that has them."""
    lines = stream.decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    first = next(event["message"] for event in events if event["type"] == "message_start")
    last = next(event for event in events if event["type"] == "message_delta")
    return first["usage"]["input_tokens"], last["usage"]["input_tokens"]


def in_two_chunks(request: FakeRequest) -> FakeResponse:
    """Respond with the usage after the first text."""
    whole = respond(request)
    end = max(0, whole.body.rfind(b"data: {"))
    return replace(whole, body=whole.body[:end], later=whole.body[end:])


def test_estimate_is_marked_and_the_final_count_is_the_upstreams() -> None:
    apis: tuple[UpstreamApi, ...] = ("chat", "responses")

    async def scene() -> None:
        for api in apis:
            async with relaying(api) as (stage, fake):
                fake.respond = in_two_chunks
                reply = await stage.request("POST", "/v1/messages", BODY)
                first, last = usages(reply.body)
                assert reply.headers["x-dovetail-diagnostics"] == "input_tokens_estimated"
                assert (400 <= first <= 700, last) == (True, 7)

    run(scene)


def test_count_in_the_first_chunk_of_the_upstream_is_used() -> None:
    def counting(request: FakeRequest) -> FakeResponse:
        if request.method == "GET":
            return FakeResponse(404)
        usage = {"prompt_tokens": 431, "completion_tokens": 1}
        done = {"prompt_tokens": 431, "completion_tokens": 2}
        return chat_stream(
            {"choices": choice("Hel"), "usage": usage},
            {"choices": choice("lo.", "stop"), "usage": done},
        )

    async def scene() -> None:
        async with relaying("chat") as (stage, fake):
            fake.respond = counting
            reply = await stage.request("POST", "/v1/messages", BODY)
            assert usages(reply.body) == (431, 431)
            assert "x-dovetail-diagnostics" not in reply.headers

    run(scene)


def test_an_upstream_that_never_counts_leaves_the_estimate() -> None:
    def silent(request: FakeRequest) -> FakeResponse:
        if request.method == "GET":
            return FakeResponse(404)
        return chat_stream({"choices": choice("Hello.", "stop")})

    async def scene() -> None:
        async with relaying("chat") as (stage, fake):
            fake.respond = silent
            reply = await stage.request("POST", "/v1/messages", BODY)
            first, last = usages(reply.body)
            assert (first > 400, last) == (True, first)
            notes = reply.headers["x-dovetail-diagnostics"]
            assert notes.split(", ") == ["input_tokens_estimated", "usage_unknown"]

    run(scene)


def test_nothing_is_estimated_where_clients_see_only_the_final_count() -> None:
    async def scene() -> None:
        async with relaying("chat") as (stage, fake):
            fake.respond = respond
            for path, body in {
                "/v1/messages": {**BODY, "stream": False},
                "/v1/chat/completions": {key: BODY[key] for key in ("model", "stream", "messages")},
                "/v1/responses": {"model": NAME, "input": "Hi.", "stream": True},
            }.items():
                reply = await stage.request("POST", path, body)
                assert reply.status == 200
                assert "x-dovetail-diagnostics" not in reply.headers

    run(scene)
