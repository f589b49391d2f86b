"""No turn is spliced with the tokens of another branch, and no edited turn with its old tokens.

The long run is `tools/fuzz_turns.py`.
"""

import random
from collections.abc import Callable, Sequence

import pytest
from forked_histories import (
    Cluster,
    GeneratedTurn,
    anonymous,
    make_cluster,
    replace_reasoning,
    results,
    run,
    small_model,
    user,
    without_reasoning,
    without_reasoning_text,
)
from histories import run_histories
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
def test_random_histories_with_similar_turns(seed: int, replicas: int) -> None:
    tally = run(run_histories(random.Random(seed), 200, replicas))
    assert tally.histories == 200
    assert tally.exact > 20  # the check is not vacuous


def test_random_histories_without_caches() -> None:
    tally = run(run_histories(random.Random(9), 200, 2, uncached=True))
    assert tally.exact > 20


def _reasoning_and_call(name: str, command: str = "ls") -> list[OutputBlock]:
    call = ToolCallBlock("", "run", f'{{"command": "{command}"}}')
    return [ReasoningBlock(f"I am {name}."), call]


async def _twins(cluster: Cluster) -> tuple[GeneratedTurn, GeneratedTurn]:
    """Generate turns with the same question and call, but different reasoning."""
    one = await cluster.generate(None, [user("hi")], _reasoning_and_call("Xanthippe"))
    return one, await cluster.generate(None, [user("hi")], _reasoning_and_call("Yorick"))


async def _child(cluster: Cluster, parent: GeneratedTurn, name: str = "Zenobia") -> GeneratedTurn:
    return await cluster.generate(
        parent, [results(parent, "fine")], _reasoning_and_call(name, "pwd")
    )


def _who(cluster: Cluster, prepared: PreparedRequest) -> set[str]:
    """Return whose reasoning a prompt contains."""
    text = cluster.text(prepared)
    return {name for name in ("Xanthippe", "Yorick", "Zenobia", "Edited") if name in text}


def _history(*turns: Turn | GeneratedTurn, last: GeneratedTurn) -> list[Turn]:
    """Build a history of turns and generated turns, each call with its result."""
    made: list[Turn] = []
    for turn in (*turns, last):
        if isinstance(turn, GeneratedTurn):
            made += [turn.turn, results(turn, "fine")]
        else:
            made.append(turn)
    return made


@pytest.mark.parametrize("load", MODELS)
class TestDoubles:
    def test_similar_turns_are_distinguished_by_handles(self, load: Loader) -> None:
        async def check() -> None:
            cluster = make_cluster(model=load())
            one, other = await _twins(cluster)
            for generated, who in ((one, "Xanthippe"), (other, "Yorick")):
                for copy in (
                    generated.turn,
                    without_reasoning_text(generated.turn),
                    without_reasoning(generated.turn),
                ):
                    prepared = await cluster.prepare([user("hi"), copy, results(generated, "fine")])
                    assert _who(cluster, prepared) == {who}
                    assert prepared.prompt.exact_turns == {1}

        run(check())

    def test_similar_turns_without_handles_are_not_spliced(self, load: Loader) -> None:
        async def check() -> None:
            cluster = make_cluster(model=load())
            one, _ = await _twins(cluster)
            prepared = await cluster.prepare(anonymous(_history(user("hi"), last=one)))
            assert not _who(cluster, prepared)
            assert "ambiguous_turn" in prepared.prompt.notes

        run(check())

    @pytest.mark.parametrize("session", [None, "s"])
    def test_a_turn_becomes_ambiguous_when_a_similar_one_is_recorded(
        self, load: Loader, session: str | None
    ) -> None:
        async def check() -> None:
            cluster = make_cluster(model=load())
            cluster.session = session
            one = await cluster.generate(None, [user("hi")], _reasoning_and_call("Xanthippe"))
            history = anonymous(_history(user("hi"), last=one))
            prepared = await cluster.prepare(history, session=session)
            assert _who(cluster, prepared) == {"Xanthippe"}
            await cluster.generate(None, [user("hi")], _reasoning_and_call("Yorick"))
            assert not _who(cluster, await cluster.prepare(history, session=session))

        run(check())

    @pytest.mark.parametrize("named", [None, "SA"])
    def test_a_turn_without_handles_matches_only_its_session(
        self, load: Loader, named: str | None
    ) -> None:
        """The history of another session may come from another server."""

        async def check() -> None:
            cluster = make_cluster(model=load())
            cluster.session = named
            one = await cluster.generate(None, [user("hi")], _reasoning_and_call("Xanthippe"))
            history = _history(user("hi"), last=one)
            for session in (None, "SA", "SB", one.entry):
                expected = {"Xanthippe"} if session == named else set()
                prepared = await cluster.prepare(anonymous(history), session=session)
                assert _who(cluster, prepared) == expected
                prepared = await cluster.prepare(history, session=session)  # a fork with seals
                assert _who(cluster, prepared) == {"Xanthippe"}

        run(check())

    def test_a_turn_without_a_session_does_not_take_that_of_its_parent(self, load: Loader) -> None:
        async def check() -> None:
            cluster = make_cluster(model=load())
            cluster.session = "SA"
            parent = await cluster.generate(None, [user("hi")], _reasoning_and_call("Xanthippe"))
            cluster.session = None
            child = await _child(cluster, parent)
            history = anonymous(_history(user("hi"), parent, last=child))
            prepared = await cluster.prepare(history, session="SA")
            assert _who(cluster, prepared) == {"Xanthippe"}

        run(check())

    def test_more_similar_turns_than_a_lookup_returns(self, load: Loader) -> None:
        async def check() -> None:
            cluster = make_cluster(model=load())
            one = await cluster.generate(None, [user("hi")], _reasoning_and_call("Xanthippe"))
            for _ in range(9):
                await cluster.generate(None, [user("hi")], _reasoning_and_call("Yorick"))
            prepared = await cluster.prepare(anonymous(_history(user("hi"), last=one)))
            assert not _who(cluster, prepared)

        run(check())

    def test_a_similar_turn_before_a_known_turn(self, load: Loader) -> None:
        """The child was generated after the other similar turn."""

        async def check() -> None:
            cluster = make_cluster(model=load())
            one, other = await _twins(cluster)
            child = await _child(cluster, one)
            prepared = await cluster.prepare(_history(user("hi"), other, last=child))
            assert _who(cluster, prepared) == {"Yorick", "Zenobia"}

        run(check())

    def test_similar_turns_before_similar_turns(self, load: Loader) -> None:
        async def check() -> None:
            cluster = make_cluster(model=load())
            one, other = await _twins(cluster)
            child = await _child(cluster, one)
            await _child(cluster, other)
            prepared = await cluster.prepare(anonymous(_history(user("hi"), one, last=child)))
            assert not _who(cluster, prepared) & {"Xanthippe", "Yorick"}

        run(check())

    def test_edited_reasoning_before_a_known_turn(self, load: Loader) -> None:
        async def check() -> None:
            cluster = make_cluster(model=load())
            one, _ = await _twins(cluster)
            child = await _child(cluster, one)
            edited = replace_reasoning(one.turn, "I am Edited.")
            history = [user("hi"), edited, results(one, "fine"), *_history(last=child)]
            prepared = await cluster.prepare(history)
            assert "Xanthippe" not in cluster.text(prepared)
            assert _shown(cluster, history) <= _who(cluster, prepared)

        run(check())

    def test_sealed_turn_with_a_similar_stored_turn(self, load: Loader) -> None:
        async def check() -> None:
            cluster = make_cluster(model=load(), replicas=2)
            one = await cluster.generate(
                None, [user("hi")], _reasoning_and_call("Xanthippe"), replica=0
            )
            await cluster.generate(None, [user("hi")], _reasoning_and_call("Yorick"), replica=1)
            history = [user("hi"), without_reasoning_text(one.turn), results(one, "fine")]
            prepared = await cluster.prepare(history, replica=1)
            assert "Yorick" not in cluster.text(prepared)
            if prepared.prompt.rewritten_turns:
                assert "Xanthippe" in cluster.text(prepared)

        run(check())

    def test_tenants_with_the_same_conversation(self, load: Loader) -> None:
        async def check() -> None:
            cluster = make_cluster(model=load())
            one = await cluster.generate(
                None, [user("hi")], _reasoning_and_call("Xanthippe"), tenant="ann"
            )
            other = await cluster.generate(
                None, [user("hi")], _reasoning_and_call("Yorick"), tenant="bob"
            )
            history = _history(user("hi"), last=other)
            for turns in (history, anonymous(history)):
                prepared = await cluster.prepare([*turns, user("so?")], tenant="ann")
                known = prepared.prompt.history.entries.values()
                assert all(entry.tenant == "ann" for entry in known)
            mixed = [user("hi"), without_reasoning(other.turn), results(other, "fine")]
            prepared = await cluster.prepare(mixed, tenant="ann")
            assert "Yorick" not in cluster.text(prepared)
            assert one.tenant == "ann"

        run(check())


def _shown(cluster: Cluster, history: Sequence[Turn]) -> set[str]:
    """Return the edited reasoning if the template renders reasoning of a running loop."""
    shows = cluster.model.profile.keeps_in_loop or not cluster.model.profile.reasoning_fields
    return {"Edited"} if shows else set()
