"""Admission of requests at the limit, and the order of the queue."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dovetail.access.admission import AdmissionController
from dovetail_model import Hints, Overloaded, RateLimited
from dovetail_protocols import CHAT, MESSAGES, RESPONSES


def scene(play: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await play()

    asyncio.run(main())


class HeldRequest:
    """An admitted request that ends when `leave` is set."""

    def __init__(
        self, admission: AdmissionController, order: list[str], name: str, **hints: object
    ) -> None:
        self.leave = asyncio.Event()
        self._order = order
        self._name = name
        hinted = Hints(**hints)  # type: ignore[arg-type]
        self.task = asyncio.create_task(self._stay(admission, hinted))

    async def _stay(self, admission: AdmissionController, hints: Hints) -> None:
        async with admission.admit(CHAT, hints):
            self._order.append(self._name)
            await self.leave.wait()


async def poll_until(until: Callable[[], bool]) -> None:
    while not until():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0)


def test_queue_is_ordered_by_priority_then_arrival() -> None:
    async def play() -> None:
        admission, order = AdmissionController(1, max_queued=10), []  # type: ignore[var-annotated]
        inside = HeldRequest(admission, order, "inside")
        await poll_until(lambda: admission.running == 1)
        waiting = [
            HeldRequest(admission, order, "first"),
            HeldRequest(admission, order, "second"),
            HeldRequest(admission, order, "sensitive", latency_sensitivity=0.9),
            HeldRequest(admission, order, "important", priority=5),
            HeldRequest(admission, order, "strict", strict_priority=1),
        ]
        await poll_until(lambda: admission.queued == 5)
        for held in [inside, *waiting]:
            held.leave.set()
        await asyncio.gather(*(held.task for held in [inside, *waiting]))
        assert order == ["inside", "strict", "important", "sensitive", "first", "second"]
        assert (admission.running, admission.queued) == (0, 0)

    scene(play)


@pytest.mark.parametrize(
    ("codec", "kind"), [(MESSAGES, Overloaded), (CHAT, RateLimited), (RESPONSES, RateLimited)]
)
def test_full_queue_gives_an_error_that_clients_retry(codec: object, kind: type[Exception]) -> None:
    async def play() -> None:
        admission = AdmissionController(0, max_queued=0)
        with pytest.raises(kind):
            async with admission.admit(codec, Hints()):  # type: ignore[arg-type]
                pass

    scene(play)


def test_queued_request_times_out() -> None:
    async def play() -> None:
        admission = AdmissionController(0, max_queued=1, queue_timeout=0.0)
        with pytest.raises(RateLimited):
            async with admission.admit(CHAT, Hints()):
                pass
        assert (admission.running, admission.queued) == (0, 0)

    scene(play)


def test_disconnected_request_leaves_the_queue() -> None:
    async def play() -> None:
        admission, order = AdmissionController(1, max_queued=10), []  # type: ignore[var-annotated]
        inside = HeldRequest(admission, order, "inside")
        gone, stays = (
            HeldRequest(admission, order, "gone", priority=9),
            HeldRequest(admission, order, "stays"),
        )
        await poll_until(lambda: admission.queued == 2)
        gone.task.cancel()
        await poll_until(lambda: admission.queued == 1)
        inside.leave.set()
        stays.leave.set()
        await stays.task
        assert order == ["inside", "stays"]
        assert admission.running == 0

    scene(play)


def test_slot_of_a_cancelled_request_is_handed_on() -> None:
    async def play() -> None:
        admission, order = AdmissionController(1, max_queued=10), []  # type: ignore[var-annotated]
        async with admission.admit(CHAT, Hints()):
            gone = HeldRequest(admission, order, "gone", priority=9)
            stays = HeldRequest(admission, order, "stays")
            await poll_until(lambda: admission.queued == 2)
        gone.task.cancel()  # the slot is assigned, but the request has not noticed yet
        stays.leave.set()
        await stays.task
        assert order == ["stays"]
        assert admission.running == 0

    scene(play)


def test_cancelled_requests_leave_no_queue_entries() -> None:
    """Clients could connect and disconnect for hours while no running request ends."""

    async def play() -> None:
        admission, order = AdmissionController(1, max_queued=4), []  # type: ignore[var-annotated]
        inside, stays = (
            HeldRequest(admission, order, "inside"),
            HeldRequest(admission, order, "stays"),
        )
        for number in range(100):
            gone = HeldRequest(admission, order, f"gone {number}", priority=9)
            await poll_until(lambda: admission.queued == 2)
            gone.task.cancel()
            await poll_until(lambda: admission.queued == 1)
        assert len(admission._queue) < 10
        inside.leave.set()
        stays.leave.set()
        await stays.task
        assert order == ["inside", "stays"]

    scene(play)


def test_capacity_limits_running_requests() -> None:
    async def play() -> None:
        files, order = [2], list[str]()
        admission = AdmissionController(10, max_queued=10, capacity=lambda: files[0])
        held = [HeldRequest(admission, order, name) for name in "abc"]
        await poll_until(lambda: admission.queued == 1)
        assert admission.running == 2
        files[0] = 3
        held.append(HeldRequest(admission, order, "d"))
        await poll_until(lambda: admission.running == 3)
        for one in held:
            one.leave.set()
        await asyncio.gather(*(one.task for one in held))
        assert (admission.running, admission.queued) == (0, 0)

    scene(play)
