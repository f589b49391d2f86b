"""No turn ever receives another branch's tokens, and no edited one its old ones.

The long run is `tools/fuzz_turns.py`.
"""

import random
from collections.abc import Callable, Sequence

import pytest
from forked_histories import (
    Grove,
    Said,
    anonymous,
    grove,
    other_thoughts,
    results,
    run,
    small_model,
    user,
    without_thoughts,
    without_words,
)
from histories import play_histories
from real_models import PAIRS, Pair, model, require

from dovetail.models.loader import Model
from dovetail.pipeline.preparation import PreparedRequest
from dovetail_model import OutputBlock, ReasoningBlock, ToolCallBlock, Turn

Loader = Callable[[], Model]

THINKING = [pair for pair in PAIRS if pair.reasoning_parser != "none"]


def _loader(pair: Pair) -> Loader:
    def load() -> Model:
        require(pair)
        return model(pair)

    return load


MODELS = [pytest.param(small_model, id="small")]
MODELS += [pytest.param(_loader(pair), id=pair.name) for pair in THINKING]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_histories_out_of_a_ledger_of_doubles(seed: int, replicas: int) -> None:
    tally = run(play_histories(random.Random(seed), 200, replicas))
    assert tally.histories == 200
    assert tally.exact > 20  # it is not by refusing everything that nothing is false


def test_histories_without_any_cache() -> None:
    tally = run(play_histories(random.Random(9), 200, 2, forgetful=True))
    assert tally.exact > 20


def _thinks(thought: str, command: str = "ls") -> list[OutputBlock]:
    call = ToolCallBlock("", "run", f'{{"command": "{command}"}}')
    return [ReasoningBlock(f"I am {thought}."), call]


async def _twins(wood: Grove) -> tuple[Said, Said]:
    """The same question, the same call, for other reasons."""
    one = await wood.say(None, [user("hi")], _thinks("Xanthippe"))
    return one, await wood.say(None, [user("hi")], _thinks("Yorick"))


async def _child(wood: Grove, above: Said, thought: str = "Zenobia") -> Said:
    return await wood.say(above, [results(above, "fine")], _thinks(thought, "pwd"))


def _who(wood: Grove, prepared: PreparedRequest) -> set[str]:
    """Whose thoughts are in a prompt."""
    text = wood.text(prepared)
    return {name for name in ("Xanthippe", "Yorick", "Zenobia", "Edited") if name in text}


def _history(*turns: Turn | Said, last: Said) -> list[Turn]:
    """Turns and what was said, each call answered."""
    made: list[Turn] = []
    for turn in (*turns, last):
        if isinstance(turn, Said):
            made += [turn.turn, results(turn, "fine")]
        else:
            made.append(turn)
    return made


@pytest.mark.parametrize("load", MODELS)
class TestDoubles:
    def test_each_twin_is_known_by_its_handles(self, load: Loader) -> None:
        async def check() -> None:
            wood = grove(model=load())
            one, other = await _twins(wood)
            for said, who in ((one, "Xanthippe"), (other, "Yorick")):
                for copy in (said.turn, without_words(said.turn), without_thoughts(said.turn)):
                    prepared = await wood.prepare([user("hi"), copy, results(said, "fine")])
                    assert _who(wood, prepared) == {who}
                    assert prepared.prompt.exact_turns == {1}

        run(check())

    def test_twins_without_handles_are_left_alone(self, load: Loader) -> None:
        async def check() -> None:
            wood = grove(model=load())
            one, _ = await _twins(wood)
            prepared = await wood.prepare(anonymous(_history(user("hi"), last=one)))
            assert not _who(wood, prepared)
            assert "ambiguous_turn" in prepared.prompt.notes

        run(check())

    def test_what_was_unique_is_ambiguous_once_it_has_a_twin(self, load: Loader) -> None:
        async def check() -> None:
            wood = grove(model=load())
            one = await wood.say(None, [user("hi")], _thinks("Xanthippe"))
            history = anonymous(_history(user("hi"), last=one))
            for session in (None, "s"):
                prepared = await wood.prepare(history, session=session)
                assert _who(wood, prepared) == {"Xanthippe"}
            await wood.say(None, [user("hi")], _thinks("Yorick"))
            for session in (None, "s"):
                assert not _who(wood, await wood.prepare(history, session=session))

        run(check())

    def test_more_twins_than_a_store_answers_with(self, load: Loader) -> None:
        async def check() -> None:
            wood = grove(model=load())
            one = await wood.say(None, [user("hi")], _thinks("Xanthippe"))
            for _ in range(9):
                await wood.say(None, [user("hi")], _thinks("Yorick"))
            prepared = await wood.prepare(anonymous(_history(user("hi"), last=one)))
            assert not _who(wood, prepared)

        run(check())

    def test_a_twin_above_a_known_turn(self, load: Loader) -> None:
        """The child was said behind the other one."""

        async def check() -> None:
            wood = grove(model=load())
            one, other = await _twins(wood)
            child = await _child(wood, one)
            prepared = await wood.prepare(_history(user("hi"), other, last=child))
            assert _who(wood, prepared) == {"Yorick", "Zenobia"}

        run(check())

    def test_twins_above_twins(self, load: Loader) -> None:
        async def check() -> None:
            wood = grove(model=load())
            one, other = await _twins(wood)
            child = await _child(wood, one)
            await _child(wood, other)
            prepared = await wood.prepare(anonymous(_history(user("hi"), one, last=child)))
            assert not _who(wood, prepared) & {"Xanthippe", "Yorick"}

        run(check())

    def test_an_edited_thought_above_a_known_turn(self, load: Loader) -> None:
        async def check() -> None:
            wood = grove(model=load())
            one, _ = await _twins(wood)
            child = await _child(wood, one)
            edited = other_thoughts(one.turn, "I am Edited.")
            history = [user("hi"), edited, results(one, "fine"), *_history(last=child)]
            prepared = await wood.prepare(history)
            assert "Xanthippe" not in wood.text(prepared)
            assert _shown(wood, history) <= _who(wood, prepared)

        run(check())

    def test_a_sealed_turn_beside_a_stored_twin(self, load: Loader) -> None:
        async def check() -> None:
            wood = grove(model=load(), replicas=2)
            one = await wood.say(None, [user("hi")], _thinks("Xanthippe"), home=0)
            await wood.say(None, [user("hi")], _thinks("Yorick"), home=1)
            history = [user("hi"), without_words(one.turn), results(one, "fine")]
            prepared = await wood.prepare(history, home=1)
            assert "Yorick" not in wood.text(prepared)
            if prepared.prompt.rewritten_turns:
                assert "Xanthippe" in wood.text(prepared)

        run(check())

    def test_tenants_with_the_same_words(self, load: Loader) -> None:
        async def check() -> None:
            wood = grove(model=load())
            one = await wood.say(None, [user("hi")], _thinks("Xanthippe"), tenant="ann")
            other = await wood.say(None, [user("hi")], _thinks("Yorick"), tenant="bob")
            history = _history(user("hi"), last=other)
            for turns in (history, anonymous(history)):
                prepared = await wood.prepare([*turns, user("so?")], tenant="ann")
                known = prepared.prompt.history.entries.values()
                assert all(entry.tenant == "ann" for entry in known)
            mixed = [user("hi"), without_thoughts(other.turn), results(other, "fine")]
            prepared = await wood.prepare(mixed, tenant="ann")
            assert "Yorick" not in wood.text(prepared)
            assert one.tenant == "ann"

        run(check())


def _shown(wood: Grove, history: Sequence[Turn]) -> set[str]:
    """The edited thought, where this template shows thoughts of a running loop at all."""
    shows = wood.model.facts.keeps_in_loop or not wood.model.facts.reasoning_fields
    return {"Edited"} if shows else set()
