"""Background responses: they continue without their client, and can be polled and cancelled."""

import asyncio
from typing import Any

import openai
import pytest
from background_fixture import Gate, shared_service, until
from http_fixture import NAME, run, serving

from dovetail.http.exchange import ApiExchange
from dovetail.http.options import BackgroundOptions, HttpOptions
from dovetail.http.responses.run import FrameLog, read_chunks, send_stream
from dovetail.responses.backend import StoredResponse
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.responses.store import ResponseStore


def test_response_is_polled_until_it_is_complete() -> None:
    async def scene() -> None:
        async with serving() as stage:
            gate = Gate(stage)
            client = stage.openai()
            created = await client.responses.create(model=NAME, input="Tell", background=True)
            assert (created.status, created.background, created.output) == ("queued", True, [])
            running = await until(stage, created.id, "in_progress")
            assert running.created_at == created.created_at
            assert stage.metric("dovetail_background_responses") == 1
            with pytest.raises(openai.BadRequestError, match="not finished"):
                await client.responses.create(
                    model=NAME, input="On", previous_response_id=created.id
                )
            gate.opened.set()
            done = await until(stage, created.id, "completed")
            assert (done.output_text, done.created_at) == ("Once upon.", created.created_at)
            assert done.usage is not None
            more = await client.responses.create(
                model=NAME, input="On", previous_response_id=created.id
            )
            assert more.output_text == "Once upon."
            assert stage.metric("dovetail_background_responses") == 0

    run(scene)


def test_run_that_finishes_while_the_store_is_read_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        async with serving() as stage:
            gate = Gate(stage)
            client = stage.openai()
            created = await client.responses.create(model=NAME, input="Tell", background=True)
            await until(stage, created.id, "in_progress")
            get = ResponseStore.get

            async def slowly(self: ResponseStore, tenant: str, id: str) -> StoredResponse | None:
                found = await get(self, tenant, id)
                gate.opened.set()
                while stage.metric("dovetail_background_responses"):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0)
                return found

            monkeypatch.setattr(ResponseStore, "get", slowly)
            assert (await client.responses.retrieve(created.id)).status == "completed"

    run(scene)


def test_one_log_line_covers_the_whole_run() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()
            created = await client.responses.create(model=NAME, input="Tell", background=True)
            line = await stage.ended.get()
            assert (line["endpoint"], line["status"], line["output"]) == ("responses", 200, 7)
            await until(stage, created.id, "completed")
            assert (await stage.ended.get())["endpoint"] == "responses_id"

    run(scene)


def test_disconnect_does_not_stop_the_run() -> None:
    async def scene() -> None:
        async with serving() as stage:
            gate = Gate(stage)
            client = stage.openai()
            stream = await client.responses.create(
                model=NAME, input="Tell", background=True, stream=True
            )
            first = await anext(aiter(stream))
            assert first.type == "response.created"
            await stream.close()
            gate.opened.set()
            done = await until(stage, first.response.id, "completed")
            assert done.output_text == "Once upon."

    run(scene)


def test_stream_can_be_resumed_after_any_frame() -> None:
    async def scene() -> None:
        async with serving() as stage:
            gate = Gate(stage)
            client = stage.openai()
            stream = await client.responses.create(
                model=NAME, input="Tell", background=True, stream=True
            )
            seen = []
            async for event in stream:
                seen.append(event)
                if event.type == "response.output_text.delta":
                    break
            await stream.close()
            id = seen[0].response.id  # type: ignore[union-attr]
            last = seen[-1].sequence_number
            again = await client.responses.retrieve(id, stream=True, starting_after=last)
            gate.opened.set()
            rest = [event async for event in again]
            numbers = [event.sequence_number for event in [*seen, *rest]]
            assert numbers == list(range(len(numbers)))
            assert rest[-1].type == "response.completed"
            late = await client.responses.retrieve(id, stream=True)
            assert [event.sequence_number async for event in late] == numbers

    run(scene)


def test_response_is_cancelled() -> None:
    async def scene() -> None:
        async with serving() as stage:
            gate = Gate(stage)
            client = stage.openai()
            created = await client.responses.create(model=NAME, input="Tell", background=True)
            await until(stage, created.id, "in_progress")
            follower = await client.responses.retrieve(created.id, stream=True)
            cancelled = await client.responses.cancel(created.id)
            assert cancelled.status == "cancelled"
            assert gate.ended == 1
            assert stage.engine.running == 0
            assert [event async for event in follower]
            assert (await client.responses.retrieve(created.id)).status == "cancelled"
            assert (await client.responses.cancel(created.id)).status == "cancelled"
            gate.opened.set()
            more = await client.responses.create(
                model=NAME, input="On", previous_response_id=created.id
            )
            assert more.status == "completed"

    run(scene)


def test_only_background_responses_can_be_cancelled() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()
            given = await client.responses.create(model=NAME, input="Hi")
            with pytest.raises(openai.BadRequestError, match="synchronous"):
                await client.responses.cancel(given.id)
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(model=NAME, input="Hi", background=True, store=False)
            assert refused.value.param == "background"
            with pytest.raises(openai.BadRequestError, match="stream"):
                await client.responses.retrieve(given.id, stream=True)

    run(scene)


def test_deleting_a_response_stops_its_run() -> None:
    async def scene() -> None:
        async with serving() as stage:
            gate = Gate(stage)
            client = stage.openai()
            created = await client.responses.create(model=NAME, input="Tell", background=True)
            await until(stage, created.id, "in_progress")
            await client.responses.delete(created.id)
            assert gate.ended == 1
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(created.id)

    run(scene)


def test_total_size_of_frames_is_limited() -> None:
    """Each run holds the tools and instructions of its request three times."""
    options = HttpOptions(background_options=BackgroundOptions(max_running_bytes=5000))

    async def scene() -> None:
        async with serving(options) as stage:
            gate = Gate(stage)
            client = stage.openai()
            large = await client.responses.create(
                model=NAME, input="Tell", instructions="x" * 3000, background=True
            )
            await until(stage, large.id, "in_progress")
            with pytest.raises(openai.RateLimitError):
                await client.responses.create(model=NAME, input="Tell", background=True)
            gate.opened.set()
            await until(stage, large.id, "completed")
            await client.responses.create(model=NAME, input="Tell", background=True)

    run(scene)


def test_number_of_runs_is_limited() -> None:
    options = HttpOptions(background_options=BackgroundOptions(max_running_per_tenant=2))

    async def scene() -> None:
        async with serving(options) as stage:
            gate = Gate(stage)
            client = stage.openai()
            ids = [
                (await client.responses.create(model=NAME, input="Tell", background=True)).id
                for _ in range(2)
            ]
            with pytest.raises(openai.RateLimitError) as refused:
                await client.responses.create(model=NAME, input="Tell", background=True)
            assert refused.value.response.headers["retry-after"]
            gate.opened.set()
            for id in ids:
                await until(stage, id, "completed")
            await client.responses.create(model=NAME, input="Tell", background=True)

    run(scene)


def test_failing_run_is_reported_as_failed() -> None:
    async def scene() -> None:
        async with serving(max_context=30) as stage:
            client = stage.openai()
            created = await client.responses.create(model=NAME, input="x" * 50, background=True)
            failed = await until(stage, created.id, "failed")
            assert failed.error is not None
            assert failed.error.code == "context_length_exceeded"
            with pytest.raises(openai.NotFoundError):
                await client.responses.create(model="none", input="x", background=True)

    run(scene)


def test_unfinished_runs_are_stored_as_failed_when_the_server_stops() -> None:
    async def scene() -> None:
        store = MemoryResponseBackend()
        made, engine = shared_service(store)
        async with serving(HttpOptions(drain_timeout=0.05), registry=made) as stage:
            stage.engine = engine
            Gate(stage)
            client = stage.openai()
            created = await client.responses.create(model=NAME, input="Tell", background=True)
            await until(stage, created.id, "in_progress")
        stored = await store.get("", created.id)
        assert stored is not None
        assert stored.status == "failed"

    run(scene)


def test_admission_limits_apply() -> None:
    """A run waits for admission like any other request."""

    async def scene() -> None:
        async with serving(HttpOptions(max_concurrent=1)) as stage:
            gate = Gate(stage)
            client = stage.openai()
            first = await client.responses.create(model=NAME, input="One", background=True)
            await until(stage, first.id, "in_progress")
            second = await client.responses.create(model=NAME, input="Two", background=True)
            assert (await client.responses.retrieve(second.id)).status == "queued"
            gate.opened.set()
            await until(stage, second.id, "completed")

    run(scene)


@pytest.mark.parametrize("after", [-1, 0, 7, 2000])
def test_followers_read_in_small_chunks(after: int) -> None:
    """Unread frames stay in the log, which all followers share."""
    frames, sent = FrameLog(), []
    large = b"x" * 200_000
    each = [b'event: e\ndata: {"sequence_number":%d}\n\n' % number for number in range(3000)]
    each[5:5] = [b'data: {"sequence_number":4.5,"x":"%b"}\n\n' % large]
    for frame in each:
        frames.append(frame)
    frames.end()

    async def send(message: Any) -> None:
        sent.append(message.get("body") or b"")

    async def scene() -> None:
        scope = {"method": "GET", "path": "/", "headers": []}
        exchange = ApiExchange(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
        await send_stream(exchange, read_chunks(frames, after))

    asyncio.run(scene())
    assert max(map(len, sent)) <= 1 << 16
    behind = each if after < 0 else each[after + 1 + (after > 4) :]
    assert b"".join(sent) == b"".join(behind)
