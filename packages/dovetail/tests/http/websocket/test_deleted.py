"""A deleted response cannot be continued, whichever open WebSocket has cached it."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from background_fixture import two_workers
from http_fixture import Stage, run, serving
from websocket_fixture import Event, event, read_response, request_response, send_request, socket_to

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.responses.backend import StoredResponse, response_size
from dovetail.responses.connection_cache import (
    MAX_TRACKED_DELETIONS,
    ConnectionCache,
    ConnectionCacheBudget,
)


def ident(events: list[Event]) -> str:
    assert events[-1]["type"] == "response.completed", events
    found: str = events[-1]["response"]["id"]
    return found


async def delete(stage: Stage, id: str) -> int:
    return (await stage.request("DELETE", f"/v1/responses/{id}")).status


async def is_missing(socket: Any, id: str) -> bool:
    (error,) = await request_response(socket, "On", previous_response_id=id)
    return bool(error["error"]["code"] == "previous_response_not_found")


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_cached_responses_are_deleted(where: str, tmp_path: Path) -> None:
    async def scene() -> None:
        async with two_workers(tmp_path) as (first, second), socket_to(first) as socket:
            one = ident(await request_response(socket, "One", store=True))
            other = ident(await request_response(socket, "Another"))
            two = ident(await request_response(socket, "Two", store=True, previous_response_id=one))
            three = ident(await request_response(socket, "Three", previous_response_id=two))
            assert await delete(first if where == "here" else second, two) == 200
            assert await is_missing(socket, two)
            assert await is_missing(socket, three)
            for previous in (one, other):
                assert ident(await request_response(socket, "On", previous_response_id=previous))
            (error,) = await request_response(
                socket, [{"type": "item_reference", "id": f"msg_{two[5:]}"}]
            )
            assert error["status"] == 404

    run(scene)


def test_response_that_is_not_stored_cannot_be_deleted() -> None:
    async def scene() -> None:
        async with serving() as stage, socket_to(stage) as socket:
            own = ident(await request_response(socket, "Own"))
            assert await delete(stage, own) == 404
            assert ident(await request_response(socket, "On", previous_response_id=own))

    run(scene)


def test_running_continuation_of_a_deleted_response_cannot_be_continued() -> None:
    async def scene() -> None:
        async with serving() as stage, socket_to(stage) as socket:
            one = ident(await request_response(socket, "One", store=True))
            opened, engine = asyncio.Event(), stage.engine

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                yield TokenDelta(engine.tokenizer.encode("Once "))
                await opened.wait()
                yield TokenDelta([engine.stop_id], finish="stop")

            engine.plan = play
            await send_request(socket, "Two", previous_response_id=one)
            await event(socket)
            assert await delete(stage, one) == 200
            opened.set()
            two = ident(await read_response(socket))
            assert await is_missing(socket, two)
            assert ident(await request_response(socket, "Anew"))

    run(scene)


def made(name: str, tenant: str = "t") -> StoredResponse:
    return StoredResponse(tenant, name, 0.0, "completed", b"", b"x" * 100)


def test_deleted_responses_free_cache_space() -> None:
    room = ConnectionCacheBudget(10_000)
    local = ConnectionCache(budget=room)
    a, b, c = made("a"), made("b"), made("c")
    local.put((), a)
    local.put((a,), b)
    local.put((a, b), c)
    local.delete("other", "b")
    assert local.get_chain("c") is not None
    local.delete("t", "b")
    assert (local.get_chain("a"), local.get_chain("b"), local.get_chain("c")) == ((a,), None, None)
    assert room.used_bytes == response_size(a)
    local.delete("t", "a")
    assert room.used_bytes == 0


def test_reservation_is_dropped_after_too_many_deletions() -> None:
    local = ConnectionCache()
    few, many = local.reserve(), None
    for at in range(MAX_TRACKED_DELETIONS):
        local.delete("t", f"x{at}")
    few.put((made("x1", "other"),), made("kept"))
    assert local.get_chain("kept") is not None
    few.put((made("x1"),), made("gone"))
    assert local.get_chain("gone") is None
    many = local.reserve()
    for at in range(MAX_TRACKED_DELETIONS + 1):
        local.delete("t", f"x{at}")
    many.put((), made("late"))
    assert local.get_chain("late") is None
