"""Slots that tenants share: no tenant holds all of them, and waiting tenants take turns."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dovetail.pipeline.tenant_slots import TenantSlots


class Work:
    """Work that holds slots until `end_oldest`. `started` lists the tenants in order."""

    def __init__(self, count: int, per_tenant: int) -> None:
        self._slots = TenantSlots(count, per_tenant)
        self._ends: list[asyncio.Event] = []
        self.started: list[str] = []

    def start(self, tenant: str) -> "asyncio.Task[None]":
        return asyncio.create_task(self._run(tenant))

    async def _run(self, tenant: str) -> None:
        async with self._slots.hold(tenant):
            self.started.append(tenant)
            end = asyncio.Event()
            self._ends.append(end)
            await end.wait()

    async def end_oldest(self) -> None:
        self._ends.pop(0).set()
        await run_pending()


async def run_pending() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def test_a_tenant_leaves_a_slot_to_the_others() -> None:
    async def scene() -> None:
        work = Work(3, 2)
        tasks = [work.start("a") for _ in range(6)]
        await run_pending()
        assert work.started == ["a", "a"]
        tasks.append(work.start("b"))
        await run_pending()
        assert work.started == ["a", "a", "b"]
        while work._ends:
            await work.end_oldest()
        await asyncio.gather(*tasks)
        assert work.started.count("a") == 6

    run(scene)


def test_waiting_tenants_take_turns() -> None:
    async def scene() -> None:
        work = Work(1, 1)
        tasks = [work.start(tenant) for tenant in "aaabbc"]
        await run_pending()
        while work._ends:
            await work.end_oldest()
        await asyncio.gather(*tasks)
        assert work.started == ["a", "a", "b", "c", "a", "b"]

    run(scene)


@pytest.mark.parametrize("assigned", [False, True])
def test_cancelled_work_leaves_its_slot(assigned: bool) -> None:
    """Also if the slot was assigned to it, but it has not run since."""

    async def scene() -> None:
        work = Work(1, 1)
        first, second = work.start("a"), work.start("b")
        await run_pending()
        if assigned:
            work._ends.pop().set()
            await asyncio.sleep(0)  # the first one releases its slot
        second.cancel()
        await run_pending()
        if not assigned:
            await work.end_oldest()
        third = work.start("c")
        await run_pending()
        assert work.started == ["a", "c"]
        await work.end_oldest()
        await asyncio.gather(first, third)

    run(scene)
