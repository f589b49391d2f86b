"""The Responses API over WebSockets: the same responses as over HTTP, one message per event."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from http_fixture import CALL, NAME, Stage, run, serving
from websocket_fixture import (
    event,
    read_response,
    request_response,
    send_request,
    socket_to,
    text_of,
)

from dovetail.access.auth import ApiKeys
from dovetail.access.limits import RateLimits
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http.options import HttpOptions
from dovetail.net import response_writer
from dovetail_model import EngineUnavailable

TOOLS = [{"type": "function", "name": "look_up", "parameters": {"type": "object"}}]
OUTPUT = f"<think>\nHm, grüße.\n</think>\n\nHello \N{WAVING HAND SIGN} there.\n{CALL}"
VOLATILE = ("id", "item_id", "call_id", "created_at", "completed_at", "encrypted_content")


@pytest.fixture(autouse=True, params=["directly", "as ASGI has it"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with direct writes, as with our server, and with ASGI messages, as with others."""
    if request.param != "directly":
        monkeypatch.setattr(response_writer, "DIRECT_WRITER_EXTENSION", "not offered")


def test_official_client_gets_the_events_of_http() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(OUTPUT)
            client = stage.openai()
            params: dict[str, Any] = {"model": NAME, "input": "Hi", "tools": TOOLS, "store": False}
            over_http = [e async for e in await client.responses.create(**params, stream=True)]
            over_socket = []
            async with client.responses.connect() as connection:
                await connection.response.create(**params)
                async for one in connection:
                    over_socket.append(one)
                    if one.type == "response.completed":
                        break
            assert [_steady(one.to_dict()) for one in over_socket] == [
                _steady(one.to_dict()) for one in over_http
            ]
            assert {type(one).__name__.count("Ws") for one in over_socket} == {1}

    run(scene)


def _steady(data: Any) -> Any:
    """Return the data without ids and times, which differ each time."""
    if isinstance(data, dict):
        return {name: _steady(value) for name, value in data.items() if name not in VOLATILE}
    return [_steady(one) for one in data] if isinstance(data, list) else data


def test_messages_are_handled_in_order() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script("One.", "Two.", "Three.")
            async with socket_to(stage) as socket:
                for text in ("a", "b", "c"):  # without waiting
                    await send_request(socket, text)
                responses = [await read_response(socket) for _ in range(3)]
            assert [text_of(one) for one in responses] == ["One.", "Two.", "Three."]
            assert [[e["sequence_number"] for e in one] for one in responses] == [
                list(range(len(one))) for one in responses
            ]
            ends = [await stage.ended.get() for _ in range(4)]
            assert [end["status"] for end in ends] == [101, 200, 200, 200]
            assert {end["transport"] for end in ends} == {"websocket"}

    run(scene)


def test_stream_ids_run_concurrently() -> None:
    async def scene() -> None:
        async with serving() as stage:
            go_on = _waits(stage, "slow")
            async with socket_to(stage) as socket:
                await send_request(socket, "slow", stream_id="a")
                await send_request(socket, "behind it", stream_id="a")
                await stage.engine.began.wait()
                quick = await request_response(socket, "quick", stream_id='b"ä')
                while quick[-1]["stream_id"] == "a":  # its first events may come in between
                    quick = await read_response(socket)
                mine = [one for one in quick if one["stream_id"] != "a"]
                assert text_of(mine) == "quick"
                assert {one["stream_id"] for one in mine} == {'b"ä'}
                go_on.set()
                slow = await read_response(socket)
                assert text_of(slow) == "slow"
                assert text_of(await read_response(socket)) == "behind it"
                assert {one["stream_id"] for one in slow} == {"a"}

    run(scene)


def _waits(stage: Stage, what: str) -> asyncio.Event:
    """Repeat the last user text as output; for the text `what`, wait for the event first."""
    go_on = asyncio.Event()
    tokenizer = stage.engine.tokenizer

    async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        text = tokenizer.decode(list(request.prompt)).split("user\n")[-1].split("<|im_end|>")[0]
        if text == what:
            await go_on.wait()
        yield TokenDelta([*tokenizer.encode(text), stage.engine.stop_id], finish="stop")

    stage.engine.plan = play
    return go_on


def test_engine_failure_within_a_stream_leaves_the_connection_usable() -> None:
    async def scene() -> None:
        async with serving() as stage:

            async def breaks(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                yield TokenDelta(stage.engine.tokenizer.encode("a"))
                raise EngineUnavailable("It is gone.")

            stage.engine.plan = breaks
            async with socket_to(stage) as socket:
                events = await request_response(socket)
                assert text_of(events) == "a"
                assert events[-1]["type"] == "response.failed"
                stage.engine.plan = stage.engine.script("Back.")
                assert text_of(await request_response(socket)) == "Back."

    run(scene)


def test_engine_failure_before_the_stream_is_an_error() -> None:
    async def scene() -> None:
        async with serving() as stage:

            async def breaks(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                for error in (EngineUnavailable("It is gone.", retry_after=7.0),):
                    raise error
                yield TokenDelta([])

            stage.engine.plan = breaks
            async with socket_to(stage) as socket:
                (error,) = await request_response(socket)
                assert (error["type"], error["status"]) == ("error", 503)
                assert error["headers"]["retry-after"] == "7"
                assert error["error"]["headers"] == error["headers"]

    run(scene)


def test_overload_is_reported_as_over_http() -> None:
    async def scene() -> None:
        async with serving(max_context=64) as stage, socket_to(stage) as socket:
            events = await request_response(socket, "x" * 100)
            assert events[-1]["type"] == "response.failed"
            assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"

    run(scene)


def test_limits_of_a_key_apply_to_every_message() -> None:
    keys = ApiKeys(["a"], limits=RateLimits(concurrent=1))

    async def scene() -> None:
        async with (
            serving(HttpOptions(keys=keys)) as stage,
            socket_to(stage, authorization="Bearer a") as socket,
        ):
            go_on = _waits(stage, "slow")
            await send_request(socket, "slow", stream_id="a")
            await stage.engine.began.wait()
            refused = await request_response(socket, stream_id="b")
            assert refused[-1]["type"] == "response.failed"
            assert refused[-1]["response"]["error"]["code"] == "rate_limit_exceeded"
            assert {one["stream_id"] for one in refused} == {"b"}
            go_on.set()
            assert text_of(await read_response(socket)) == "slow"

    run(scene)


def test_message_carries_its_own_headers() -> None:
    """Codex sends the turn in each message; the handshake's headers are those of another turn."""
    first = json.dumps({"session_id": "s-1", "request_kind": "compaction"})
    later = json.dumps({"session_id": "s-1", "request_kind": "turn"})

    async def scene() -> None:
        async with (
            serving() as stage,
            socket_to(stage, x_codex_turn_metadata=first, x_openai_subagent="old") as socket,
        ):
            metadata = {"x-codex-turn-metadata": later, "x-openai-subagent": "review"}
            await request_response(socket, client_metadata=metadata)
            await request_response(socket, client_metadata={"x-codex-turn-metadata": later})
            ends = [await stage.ended.get() for _ in range(3)][1:]
            assert [end["session"] for end in ends] == ["s-1", "s-1"]
            assert [end["agent"] for end in ends] == ["review", "old"]
            assert len({end["id"] for end in ends}) == 2

    run(scene)


def test_side_channel_messages_contain_their_event_name() -> None:
    async def scene() -> None:
        async with serving() as stage, socket_to(stage, x_dovetail_dispatch="tools") as socket:
            stage.engine.plan = stage.engine.script(CALL)
            kinds = [e["type"] for e in await request_response(socket, tools=TOOLS)]
            assert "tool_call_dispatch" in kinds

    run(scene)


def test_keep_alives_are_events() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keep_alive=0.01)) as stage:

            async def thinks(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                yield TokenDelta(stage.engine.tokenizer.encode("a"))
                await asyncio.Event().wait()

            stage.engine.plan = thinks
            async with socket_to(stage) as socket:
                await send_request(socket)
                while (await event(socket))["type"] != "response.output_text.delta":
                    pass
                assert (await event(socket))["type"] == "response.in_progress"

    run(scene)


def test_findings_are_messages() -> None:
    """Those of the header come before the events, later ones between them."""
    broken = '<tool_call>\n{"name": "look_up", "arguments": {"a": "\n"}}\n</tool_call>'

    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script("Hello. " + broken)
            client = stage.openai()
            params: dict[str, Any] = {"model": NAME, "input": "Hi", "tools": TOOLS, "store": False}
            seen: list[Any] = []
            async with client.responses.connect() as connection:
                request: Any = {"type": "response.create", **params, "of_tomorrow": 1}
                await connection.send(request)
                async for one in connection:
                    seen.append(one.to_dict())
                    if one.type == "response.completed":
                        break
            notes = [one for one in seen if one["type"] == "dovetail.diagnostics"]
            assert notes == [
                {"type": "dovetail.diagnostics", "codes": ["ignored:of_tomorrow"]},
                {"type": "dovetail.diagnostics", "codes": ["control_character_in_string"]},
            ]
            assert seen.index(notes[0]) == 0
            async with socket_to(stage) as socket:
                sent = await request_response(socket, stream_id="lane", of_tomorrow=1)
            assert sent[0] == notes[0] | {"stream_id": "lane"}

    run(scene)
