"""Background responses and the store: other servers, restarts, and store failures."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import openai
import pytest
from background_fixture import Gate, shared_service, until
from http_fixture import NAME, run, service, serving

from dovetail.http.options import BackgroundOptions, HttpOptions
from dovetail.pipeline.registry import ModelRegistry
from dovetail.responses.backend import StoredResponse
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail.server.build import open_response_store
from dovetail.settings.config import Config
from dovetail.storage.faults import StoreError


class Late(MemoryResponseBackend):
    """A store in which something happens while a response is being deleted."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def delete(self, tenant: str, id: str) -> bool:
        was_there = await super().delete(tenant, id)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return was_there


def test_response_deleted_while_it_ends_stays_deleted() -> None:
    async def scene() -> None:
        made, engine = shared_service(store := Late())
        async with serving(registry=made) as stage:
            stage.engine = engine
            gate = Gate(stage)
            client = stage.openai()
            created = await client.responses.create(model=NAME, input="Tell", background=True)
            await until(stage, created.id, "in_progress")

            async def ends() -> None:
                gate.opened.set()
                while stage.app.background.running:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

            store.meanwhile = ends
            await client.responses.delete(created.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(created.id)

    run(scene)


def test_servers_on_one_data_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    """With default settings: neither server knows about the other."""
    config = Config(store="sqlite")

    async def scene() -> None:
        (one, engine), (two, _) = service(), service()
        first_store, second_store = (
            open_response_store(config, tmp_path),
            open_response_store(config, tmp_path),
        )
        async with (
            serving(registry=ModelRegistry(one.entries, {}, first_store)) as first,
            serving(registry=ModelRegistry(two.entries, {}, second_store)) as second,
        ):
            first.engine = engine
            gate = Gate(first)
            created = await first.openai().responses.create(
                model=NAME, input="Tell", background=True
            )
            known = await first_store.get("", created.id)
            assert known is not None
            await first_store.wait_stored(known)
            there = await second.openai().responses.retrieve(created.id)
            assert there.status in ("queued", "in_progress")
            gate.opened.set()
            assert (await until(second, created.id, "completed")).output_text == "Once upon."

    run(scene)


def test_run_that_cannot_be_stored_is_shown_while_it_runs() -> None:
    class Full(MemoryResponseBackend):
        async def put(self, response: StoredResponse) -> None:
            raise StoreError("no room")

    async def scene() -> None:
        made, engine = shared_service(Full())
        async with serving(registry=made) as stage:
            stage.engine = engine
            gate = Gate(stage)
            client = stage.openai()
            created = await client.responses.create(model=NAME, input="Tell", background=True)
            assert (await until(stage, created.id, "in_progress")).id == created.id
            await client.responses.cancel(created.id)
            await gate.ends.get()

    run(scene)


def test_another_server_retrieves_and_cancels_a_run() -> None:
    options = HttpOptions(background_options=BackgroundOptions(poll_seconds=0.01))

    async def scene() -> None:
        store = MemoryResponseBackend()
        (one, engine), (two, _) = shared_service(store), shared_service(store)
        async with (
            serving(options, registry=one) as first,
            serving(options, registry=two) as second,
        ):
            first.engine = engine
            gate = Gate(first)
            created = await first.openai().responses.create(
                model=NAME, input="Tell", background=True
            )
            there = second.openai()
            assert (await there.responses.retrieve(created.id)).status in ("queued", "in_progress")
            await there.responses.cancel(created.id)
            await gate.ends.get()
            assert (await until(first, created.id, "cancelled")).status == "cancelled"
            again = await first.openai().responses.create(model=NAME, input="Tell", background=True)
            await there.responses.delete(again.id)
            await gate.ends.get()
            with pytest.raises(openai.NotFoundError):
                await first.openai().responses.retrieve(again.id)

    run(scene)


def test_run_of_a_crashed_server_is_reported_as_failed() -> None:
    options = HttpOptions(background_options=BackgroundOptions(stale_seconds=-1.0))

    async def scene() -> None:
        store = MemoryResponseBackend()
        (one, engine), (two, _) = shared_service(store), shared_service(store)
        async with serving(registry=one) as first, serving(options, registry=two) as second:
            first.engine = engine
            gate = Gate(first)
            created = await first.openai().responses.create(
                model=NAME, input="Tell", background=True
            )
            dead = await second.openai().responses.retrieve(created.id)
            assert dead.status == "failed"
            gate.opened.set()

    run(scene)


def test_unfinished_runs_are_reported_as_failed_after_a_restart() -> None:
    async def scene() -> None:
        store = MemoryResponseBackend()
        head = b'{"id":"resp_1","object":"response","status":"in_progress","error":null}'
        left = StoredResponse("", "resp_1", 0.0, "in_progress", head, b"", background=True)
        await store.put(left)
        made, _ = service()
        async with serving(registry=ModelRegistry(made.entries, {}, ResponseStore(store))) as stage:
            reply = await stage.request("GET", "/v1/responses/resp_1")
            assert reply.json["status"] == "failed"
            assert reply.json["error"]["code"] == "server_error"
            reply = await stage.request("POST", "/v1/responses/resp_1/cancel")
            assert reply.json["status"] == "failed"

    run(scene)
