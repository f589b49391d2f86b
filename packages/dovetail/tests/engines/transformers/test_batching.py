"""The engine around transformers' batching, with a stand-in for the library's manager."""

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


def asked(**fields: Any) -> EngineRequest:
    fields = {"stop_ids": frozenset({9, 8}), **fields}
    return EngineRequest("r", array("I", [1, 2, 3]), max_tokens=5, **fields)


async def _settle() -> None:
    """Until all that can go on by itself has gone on."""
    for _ in range(5):
        await asyncio.sleep(0)


def play(
    manager: Manager, *parts: list[Output], request: EngineRequest | None = None
) -> list[TokenDelta]:
    """What is heard if each part is handed over at once."""

    async def main() -> list[TokenDelta]:
        heard = []
        async with aclosing(iter_deltas(engine(manager), request or asked())) as deltas:
            for part in parts:
                hearing = asyncio.ensure_future(anext(deltas))
                await _settle()
                manager.hand_over(*part)
                heard.append(await hearing)
        return heard

    return asyncio.run(main())


def test_what_came_while_there_was_no_room_is_one_delta() -> None:
    manager = Manager(found=2)
    parts = [[4], [4, 5], [4, 5, 6], [4, 5, 6, 7]]
    heard = play(
        manager,
        [output(*part) for part in parts],
        [],
        [output(4, 5, 6, 7, 9, finished=True)],
    )
    assert [delta.ids for delta in heard] == [[4], [5, 6, 7], [9]]
    assert [delta.finish for delta in heard] == [None, None, "stop"]
    assert [delta.cached for delta in heard] == [2, None, None]
    assert manager.cancelled == []
    assert manager.leftovers == []  # of requests that were cancelled


class Ear:
    """Has room, or says so; and may fail."""

    def __init__(self, failing: bool = False, content: bool = False) -> None:
        self.heard: list[list[int]] = []
        self.failing = failing
        self.content = content  # after the first delta

    def push(self, delta: TokenDelta) -> bool:
        if self.failing:
            raise RuntimeError("cannot hear")
        self.heard.append(delta.ids)
        return not self.content

    async def drain(self) -> bool:
        return False


def test_a_listener_with_room_hears_in_the_very_call() -> None:
    manager, ear = Manager(), Ear()

    async def main() -> None:
        speaking = asyncio.ensure_future(engine(manager).generate(asked(), ear))
        await _settle()
        for part in ([4], [4, 5], [4, 5, 6]):
            manager.hand_over(output(*part))
            assert ear.heard[-1] == part[-1:]
        manager.hand_over(output(4, 5, 6, 9, finished=True))
        await speaking

    asyncio.run(main())
    assert ear.heard == [[4], [5], [6], [9]]
    assert manager.cancelled == []


@pytest.mark.parametrize("leaves", ["cancelled", "content", "failing"])
def test_who_hears_no_more_is_told_no_more(leaves: str) -> None:
    manager = Manager()
    ear = Ear(failing=leaves == "failing", content=leaves == "content")

    async def main() -> None:
        speaking = asyncio.ensure_future(engine(manager).generate(asked(), ear))
        await _settle()
        ((_, handler),) = manager.handlers.items()
        handler(output(4))
        if leaves == "cancelled":
            speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)
        handler(output(4, 5))  # it was on its way
        if leaves == "failing":
            assert isinstance(speaking.exception(), RuntimeError)

    asyncio.run(main())
    assert ear.heard == ([] if leaves == "failing" else [[4]])
    assert len(manager.cancelled) == 1
    assert manager.handlers == {}


def test_an_end_without_a_stop_id_is_the_limit() -> None:
    heard = play(Manager(), [output(4, 5, finished=True)])
    assert (heard[0].ids, heard[0].finish, heard[0].cached) == ([4, 5], "length", 0)


def test_what_the_library_is_asked() -> None:
    manager = Manager()
    play(manager, [output(9, finished=True)], request=asked(sampling=Sampling(temperature=0.0)))
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
    play(manager, [output(9, finished=True)], request=asked(stop_ids=frozenset()))
    assert manager.requests[1]["eos_token_id"] == -1


class TellingManager(Manager):
    """Notes of each step how likely its token was, as the loop does before it hands it over."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.transfers = SimpleNamespace(prepare_batch_update=lambda: "outcome")
        self.batch_processor.inputs_and_outputs = self.transfers
        self.logit_processor = SimpleNamespace(probabilities=SimpleNamespace(hand_out=self._note))

    def _note(self) -> None:
        self.steps += 1
        (asked,) = self.requests
        asked["draw"].told.append((-float(self.steps), [(self.steps, -0.5)]))

    def hand_over(self, *outputs: Output) -> None:
        for one in outputs:
            while self.steps < len(one.generated_tokens) + (not one.finished):
                assert self.transfers.prepare_batch_update() == "outcome"
        super().hand_over(*outputs)


def test_logprobs_are_those_of_the_ids_they_come_with() -> None:
    """Also where the loop is a step ahead, or several tokens come in one delta."""
    heard = play(
        TellingManager(),
        [output(4), output(4, 5), output(4, 5, 6)],
        [],
        [output(4, 5, 6, 9, finished=True)],
        request=asked(sampling=Sampling(logprobs=1)),
    )
    assert [delta.ids for delta in heard] == [[4], [5, 6], [9]]
    said = [one for delta in heard for one in delta.logprobs]
    assert [len(delta.logprobs) for delta in heard] == [1, 2, 1]
    assert [one.token for one in said] == [f"token_id:{id}" for id in (4, 5, 6, 9)]
    assert [one.logprob for one in said] == [-1.0, -2.0, -3.0, -4.0]
    assert said[2].top == (("token_id:3", -0.5),)


def test_closing_cancels_and_leaves_nothing_behind() -> None:
    manager = Manager()
    play(manager, [output(4)])
    assert len(manager.cancelled) == 1
    assert manager.handlers == {}


@pytest.mark.parametrize(("survives", "kind"), [(True, EngineError), (False, EngineUnavailable)])
def test_failures(survives: bool, kind: type[EngineError]) -> None:
    manager = Manager()
    manager.running = survives

    async def main() -> None:
        made = engine(manager, liveness_check_seconds=0.0)
        hearing = asyncio.ensure_future(anext(iter_deltas(made, asked())))
        await _settle()
        manager.hand_over(output(4, finished=True, error="out of memory"))
        with pytest.raises(EngineError, match="out of memory") as raised:
            await hearing
        assert type(raised.value) is kind
        health = await made.health()
        assert health.ready == survives
        assert health.facts == {"running": 3, "waiting": 3}

    asyncio.run(main())


def test_a_loop_that_takes_no_more() -> None:
    manager = Manager()
    manager.accepting = False

    async def main() -> None:
        with pytest.raises(EngineUnavailable, match="takes no more"):
            await anext(iter_deltas(engine(manager), asked()))

    asyncio.run(main())
    assert manager.handlers == {}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"sampling": Sampling(logprobs=0)}, Unsupported),  # with a library that is not known
        ({"constraint": Constraint("lark", "start: /a/")}, Unsupported),
        ({"prompt": array("I", [1, VOCABULARY])}, InvalidRequest),
    ],
)
def test_what_would_end_the_loop_never_reaches_it(fields: dict[str, Any], kind: type) -> None:
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


def test_a_full_cache_gives_up_what_was_used_longest_ago() -> None:
    """The library's own order, up to 5.18, is the other way round."""
    blocks = SimpleNamespace(_init_block_ids={}, compute_hash=lambda *_: 0)

    def free(ids: list[int], shareable: bool) -> None:
        blocks._init_block_ids.update(dict.fromkeys(ids))

    blocks.free_blocks = free
    PrefixCacheHook(SimpleNamespace(_block_manager=blocks))
    blocks.free_blocks([1, 2, 3], True)
    blocks.free_blocks([4, 5], True)
    given_up = [blocks._init_block_ids.popitem()[0] for _ in range(5)]
    assert given_up == [3, 2, 1, 5, 4]  # of each sequence its end first
