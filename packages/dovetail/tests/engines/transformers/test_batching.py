"""The engine on transformers' batching, with a fake of the library's manager."""

import asyncio
from array import array
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from batching_manager import VOCABULARY, Manager, Output, engine, output

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.transformers.child.prefix_cache import PrefixCacheHook
from dovetail_model import EngineError, EngineUnavailable, InvalidRequest, Sampling, Unsupported


def make_request(**fields: Any) -> EngineRequest:
    fields = {"stop_ids": frozenset({9, 8}), **fields}
    return EngineRequest("r", array("I", [1, 2, 3]), max_tokens=5, **fields)


async def _run_ready_tasks() -> None:
    """Let all ready tasks run."""
    for _ in range(5):
        await asyncio.sleep(0)


def deliver_parts(
    manager: Manager, *parts: list[Output], request: EngineRequest | None = None
) -> list[TokenDelta]:
    """Return the deltas received if each part is delivered at once."""

    async def main() -> list[TokenDelta]:
        received = []
        async with aclosing(iter_deltas(engine(manager), request or make_request())) as deltas:
            for part in parts:
                next_delta = asyncio.ensure_future(anext(deltas))
                await _run_ready_tasks()
                manager.hand_over(*part)
                received.append(await next_delta)
        return received

    return asyncio.run(main())


def test_outputs_that_arrived_without_room_are_one_delta() -> None:
    manager = Manager(found=2)
    parts = [[4], [4, 5], [4, 5, 6], [4, 5, 6, 7]]
    deltas = deliver_parts(
        manager,
        [output(*part) for part in parts],
        [],
        [output(4, 5, 6, 7, 9, finished=True)],
    )
    assert [delta.ids for delta in deltas] == [[4], [5, 6, 7], [9]]
    assert [delta.finish for delta in deltas] == [None, None, "stop"]
    assert [delta.cached for delta in deltas] == [2, None, None]
    assert manager.cancelled == []
    assert manager.leftovers == []  # no handlers of cancelled requests remain


class FakeSink:
    """A sink that may be full after the first delta, or may fail."""

    def __init__(self, failing: bool = False, content: bool = False) -> None:
        self.received: list[list[int]] = []
        self.failing = failing
        self.content = content  # after the first delta

    def push(self, delta: TokenDelta) -> bool:
        if self.failing:
            raise RuntimeError("cannot take it")
        self.received.append(delta.ids)
        return not self.content

    async def drain(self) -> bool:
        return False


def test_sink_with_room_is_called_immediately() -> None:
    manager, sink = Manager(), FakeSink()

    async def main() -> None:
        generation = asyncio.ensure_future(engine(manager).generate(make_request(), sink))
        await _run_ready_tasks()
        for part in ([4], [4, 5], [4, 5, 6]):
            manager.hand_over(output(*part))
            assert sink.received[-1] == part[-1:]
        manager.hand_over(output(4, 5, 6, 9, finished=True))
        await generation

    asyncio.run(main())
    assert sink.received == [[4], [5], [6], [9]]
    assert manager.cancelled == []


@pytest.mark.parametrize("ending", ["cancelled", "content", "failing"])
def test_ended_request_gets_no_more_deltas(ending: str) -> None:
    manager = Manager()
    sink = FakeSink(failing=ending == "failing", content=ending == "content")

    async def main() -> None:
        generation = asyncio.ensure_future(engine(manager).generate(make_request(), sink))
        await _run_ready_tasks()
        ((_, handler),) = manager.handlers.items()
        handler(output(4))
        if ending == "cancelled":
            generation.cancel()
        await asyncio.gather(generation, return_exceptions=True)
        handler(output(4, 5))  # the output was in transit
        if ending == "failing":
            assert isinstance(generation.exception(), RuntimeError)

    asyncio.run(main())
    assert sink.received == ([] if ending == "failing" else [[4]])
    assert len(manager.cancelled) == 1
    assert manager.handlers == {}


def test_finish_without_a_stop_id_is_length() -> None:
    deltas = deliver_parts(Manager(), [output(4, 5, finished=True)])
    assert (deltas[0].ids, deltas[0].finish, deltas[0].cached) == ([4, 5], "length", 0)


def test_request_to_the_library() -> None:
    manager = Manager()
    deliver_parts(
        manager,
        [output(9, finished=True)],
        request=make_request(sampling=Sampling(temperature=0.0)),
    )
    draw = manager.requests[0].pop("draw")
    assert (draw.temperature, draw.guide) == (0.0, None)
    assert manager.requests == [
        {
            "input_ids": [1, 2, 3],
            "max_new_tokens": 5,
            "streaming": True,
            "eos_token_id": [8, 9],
        }
    ]
    deliver_parts(manager, [output(9, finished=True)], request=make_request(stop_ids=frozenset()))
    assert manager.requests[1]["eos_token_id"] == -1


class LogprobManager(Manager):
    """Records the logprob of each step, as the loop does before it delivers the token."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.transfers = SimpleNamespace(prepare_batch_update=lambda: "outcome")
        self.batch_processor.inputs_and_outputs = self.transfers
        self.logit_processor = SimpleNamespace(probabilities=SimpleNamespace(hand_out=self._record))

    def _record(self) -> None:
        self.steps += 1
        (request,) = self.requests
        request["draw"].recorded_logprobs.append((-float(self.steps), [(self.steps, -0.5)]))

    def hand_over(self, *outputs: Output) -> None:
        for one in outputs:
            while self.steps < len(one.generated_tokens) + (not one.finished):
                assert self.transfers.prepare_batch_update() == "outcome"
        super().hand_over(*outputs)


def test_logprobs_match_their_ids() -> None:
    """This includes a loop that is a step ahead, and several tokens in one delta."""
    deltas = deliver_parts(
        LogprobManager(),
        [output(4), output(4, 5), output(4, 5, 6)],
        [],
        [output(4, 5, 6, 9, finished=True)],
        request=make_request(sampling=Sampling(logprobs=1)),
    )
    assert [delta.ids for delta in deltas] == [[4], [5, 6], [9]]
    logprobs = [one for delta in deltas for one in delta.logprobs]
    assert [len(delta.logprobs) for delta in deltas] == [1, 2, 1]
    assert [one.token for one in logprobs] == [f"token_id:{id}" for id in (4, 5, 6, 9)]
    assert [one.logprob for one in logprobs] == [-1.0, -2.0, -3.0, -4.0]
    assert logprobs[2].top == (("token_id:3", -0.5),)


def test_closing_cancels_and_cleans_up() -> None:
    manager = Manager()
    deliver_parts(manager, [output(4)])
    assert len(manager.cancelled) == 1
    assert manager.handlers == {}


@pytest.mark.parametrize(("survives", "kind"), [(True, EngineError), (False, EngineUnavailable)])
def test_failures(survives: bool, kind: type[EngineError]) -> None:
    manager = Manager()
    manager.running = survives

    async def main() -> None:
        batching = engine(manager, liveness_check_seconds=0.0)
        next_delta = asyncio.ensure_future(anext(iter_deltas(batching, make_request())))
        await _run_ready_tasks()
        manager.hand_over(output(4, finished=True, error="out of memory"))
        with pytest.raises(EngineError, match="out of memory") as raised:
            await next_delta
        assert type(raised.value) is kind
        health = await batching.health()
        assert health.ready == survives
        assert health.facts == {"running": 3, "waiting": 3}

    asyncio.run(main())


def test_loop_that_accepts_no_requests() -> None:
    manager = Manager()
    manager.accepting = False

    async def main() -> None:
        with pytest.raises(EngineUnavailable, match="does not accept requests"):
            await anext(iter_deltas(engine(manager), make_request()))

    asyncio.run(main())
    assert manager.handlers == {}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"sampling": Sampling(logprobs=0)}, Unsupported),  # with an unknown version of the library
        ({"constraint": Constraint("lark", "start: /a/")}, Unsupported),
        ({"prompt": array("I", [1, VOCABULARY])}, InvalidRequest),
    ],
)
def test_invalid_requests_do_not_reach_the_loop(fields: dict[str, Any], kind: type) -> None:
    manager = Manager()

    async def main() -> None:
        prompt = fields.get("prompt", array("I", [1]))
        rest = {name: value for name, value in fields.items() if name != "prompt"}
        with pytest.raises(kind):
            await anext(
                iter_deltas(engine(manager), EngineRequest("r", prompt, max_tokens=1, **rest))
            )

    asyncio.run(main())
    assert manager.requests == []


def test_full_cache_evicts_the_oldest_blocks() -> None:
    """The library's own order, up to 5.18, is the reverse."""
    blocks = SimpleNamespace(_init_block_ids={}, compute_hash=lambda *_: 0)

    def free(ids: list[int], shareable: bool) -> None:
        blocks._init_block_ids.update(dict.fromkeys(ids))

    blocks.free_blocks = free
    PrefixCacheHook(SimpleNamespace(_block_manager=blocks))
    blocks.free_blocks([1, 2, 3], True)
    blocks.free_blocks([4, 5], True)
    given_up = [blocks._init_block_ids.popitem()[0] for _ in range(5)]
    assert given_up == [3, 2, 1, 5, 4]  # the end of each sequence first
