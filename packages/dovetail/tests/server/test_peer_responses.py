"""Responses of several processes: each can retrieve, cancel and delete those of another."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import openai
import pytest
from background_fixture import Gate, two_workers, until
from http_fixture import NAME, Stage, head, run
from websocket_fixture import until as it_is_so

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.http.options import HttpOptions
from dovetail.http.responses.run import ResponsePeers, read_chunks
from dovetail.responses.backend import StoredResponse
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.server import peer_responses as together
from dovetail.storage.faults import StoreError

TENANTS = ApiKeys(
    [], [ApiKey(name, sha256(f"key-{name}".encode()).digest()) for name in ("a", "b")]
)


async def begun(stage: Stage, key: str = "none") -> str:
    """The id of a running response."""
    client = stage.openai(key)
    stream = await client.responses.create(model=NAME, input="Tell", background=True, stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
        if event.type == "response.created":
            id = event.response.id
    await stream.close()
    return id


def test_response_is_followed_from_any_frame_during_and_after_its_run(tmp_path: Path) -> None:
    async def scene() -> None:
        async with two_workers(tmp_path) as (first, second):
            gate = Gate(first)
            id = await begun(first)
            there = second.openai()
            stream = await there.responses.retrieve(id, stream=True)
            seen = []
            async for event in stream:
                seen.append(event)
                if event.type == "response.output_text.delta":
                    break
            await stream.close()
            last = seen[-1].sequence_number
            again = await there.responses.retrieve(id, stream=True, starting_after=last)
            gate.opened.set()
            rest = [event async for event in again]
            numbers = [event.sequence_number for event in [*seen, *rest]]
            assert numbers == list(range(len(numbers)))
            assert rest[-1].type == "response.completed"
            over = await there.responses.retrieve(id, stream=True, starting_after=last)
            assert [event.sequence_number async for event in over] == numbers[last + 1 :]
            await first.openai().responses.delete(id)
            with pytest.raises(openai.NotFoundError):
                await there.responses.retrieve(id, stream=True)

    run(scene)


def test_disconnect_ends_the_following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = asyncio.Queue[None]()

    async def watched(frames: Any, after: int = -1) -> AsyncGenerator[bytes]:
        try:
            async for part in read_chunks(frames, after):
                yield part
        finally:
            left.put_nowait(None)

    monkeypatch.setattr(together, "read_chunks", watched)

    async def scene() -> None:
        async with two_workers(tmp_path, max_followed_streams=1) as (first, second):
            gate = Gate(first)
            id = await begun(first)
            there = second.openai()
            for _ in range(3):
                stream = await there.responses.retrieve(id, stream=True)
                with pytest.raises(openai.RateLimitError) as refused:
                    await there.responses.retrieve(id, stream=True)
                assert refused.value.response.headers["retry-after"]
                await anext(aiter(stream))
                await stream.close()
                await left.get()
                await there.responses.retrieve(id)
            gate.opened.set()
            assert (await until(second, id, "completed")).output_text == "Once upon."

    run(scene)


def test_stream_of_a_crashed_process_does_not_look_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fall = asyncio.Event()

    async def falls(frames: Any, after: int = -1) -> AsyncGenerator[bytes]:
        yield b"".join(frames.chunks)
        await fall.wait()
        raise ValueError("as if killed")

    monkeypatch.setattr(together, "read_chunks", falls)

    async def scene() -> None:
        async with two_workers(tmp_path) as (first, second):
            gate = Gate(first)
            id = await begun(first)
            reader, writer = await second.connect()
            writer.write(head("GET", f"/v1/responses/{id}?stream=true", 0))
            begin = await reader.readuntil(b"Once")
            assert begin.startswith(b"HTTP/1.1 200")
            fall.set()
            rest = b""
            with suppress(ConnectionError):
                rest = await reader.read()
            assert not rest.endswith(b"0\r\n\r\n")
            writer.close()
            stream = await second.openai().responses.retrieve(id, stream=True)
            with pytest.raises(openai.APIConnectionError):
                [event async for event in stream]
            gate.opened.set()
            assert (await until(first, id, "completed")).output_text == "Once upon."

    run(scene)


def test_response_is_cancelled_from_another_process(tmp_path: Path) -> None:
    async def scene() -> None:
        async with two_workers(tmp_path) as (first, second):
            gate = Gate(first)
            id = await begun(first)
            cancelled = await second.openai().responses.cancel(id)
            assert cancelled.status == "cancelled"
            assert gate.ended == 1
            assert [item.type for item in cancelled.output] == ["message"]
            for stage in (first, second):
                assert (await stage.openai().responses.retrieve(id)).status == "cancelled"

    run(scene)


class EndsFirst:
    """Peers that get the request too late."""

    def __init__(self, others: ResponsePeers, gate: Gate, maker: Stage) -> None:
        self._others = others
        self._gate = gate
        self._maker = maker
        self.follow, self.forget, self.publish = others.follow, others.forget, others.publish

    async def cancel(self, key: tuple[str, str]) -> bool:
        self._gate.opened.set()
        await it_is_so(lambda: not self._maker.app.background.running)
        assert not await self._others.cancel(key)
        return False


def test_response_that_finishes_first_is_reported_as_finished(tmp_path: Path) -> None:
    async def scene() -> None:
        async with two_workers(tmp_path) as (first, second):
            gate = Gate(first)
            id = await begun(first)
            background = second.app.background
            background.peers = EndsFirst(background.peers, gate, first)
            assert (await second.openai().responses.cancel(id)).status == "completed"
            for stage in (first, second):
                found = await stage.openai().responses.retrieve(id)
                assert (found.status, found.output_text) == ("completed", "Once upon.")

    run(scene)


def test_response_deleted_from_another_process_stays_deleted(tmp_path: Path) -> None:
    async def scene() -> None:
        async with two_workers(tmp_path) as (first, second):
            gate = Gate(first)
            id = await begun(first)
            await second.openai().responses.delete(id)
            assert gate.ended == 1
            for stage in (first, second):
                with pytest.raises(openai.NotFoundError):
                    await stage.openai().responses.retrieve(id)

    run(scene)


def test_deleted_response_is_not_returned_from_memory_if_the_store_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(self: MemoryResponseBackend, tenant: str, id: str) -> StoredResponse | None:
        raise StoreError("away")

    async def scene() -> None:
        async with two_workers(tmp_path) as (first, second):
            here = first.openai()
            gone, remaining = [
                await here.responses.create(model=NAME, input="Hi") for _ in range(2)
            ]
            await second.openai().responses.delete(gone.id)
            monkeypatch.setattr(MemoryResponseBackend, "get", away)
            assert (await here.responses.retrieve(remaining.id)).output_text == "Hello."
            with pytest.raises(openai.NotFoundError):
                await here.responses.retrieve(gone.id)

    run(scene)


def test_tenants_are_separated_across_processes(tmp_path: Path) -> None:
    async def scene() -> None:
        async with two_workers(tmp_path, HttpOptions(keys=TENANTS)) as (first, second):
            gate = Gate(first)
            id = await begun(first, "key-a")
            other, others = second.openai("key-b"), second.app.background.peers
            with pytest.raises(openai.NotFoundError):
                await other.responses.retrieve(id, stream=True)
            with pytest.raises(openai.NotFoundError):
                await other.responses.cancel(id)
            with pytest.raises(openai.NotFoundError):
                await other.responses.delete(id)
            assert await others.follow(("b", id), -1) is None
            assert not await others.cancel(("b", id))
            await others.forget(("b", id))
            mine = await second.openai("key-a").responses.retrieve(id, stream=True)
            gate.opened.set()
            assert [event async for event in mine][-1].type == "response.completed"

    run(scene)


def test_followed_run_of_another_process_delays_the_stop(tmp_path: Path) -> None:
    async def scene() -> None:
        async with two_workers(tmp_path) as (first, second):
            gate = Gate(first)
            id = await begun(first)
            stream = await second.openai().responses.retrieve(id, stream=True)
            assert second.app.draining.active_requests == 1
            second.app.draining.start()
            gate.opened.set()
            assert [event async for event in stream][-1].type == "response.completed"
            await it_is_so(lambda: second.app.draining.active_requests == 0)
            assert (await second.request("GET", f"/v1/responses/{id}?stream=true")).status == 503

    run(scene)
