"""A spliced prompt equals the prompt that the template renders.

If the model generates a turn exactly as the template renders it, both ways are comparable: a prompt
grown from known tokens, and one that a server without a ledger renders from the beginning.
"""

import json
from array import array
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from forked_histories import KEYS, Cluster, GeneratedTurn, make_cluster, results, run, user
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from real_models import PAIRS, Pair, model, require

from dovetail.models.loader import Model
from dovetail_model import (
    OutputBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

EXAMPLES = settings(
    max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)

WORDS = st.sampled_from(
    ["Sure", "it is 42", "ünï", "漢字", "🦜", "a  b", "x\ny", "1.", "{}", "<b>", "don't", "`ls`"]
)
TEXT = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
NUMBERS = st.integers(-9, 99)
VALUES = st.one_of(TEXT, NUMBERS, st.booleans(), st.lists(NUMBERS, max_size=2))
GIVEN = st.dictionaries(st.sampled_from(["command", "count", "extra"]), VALUES, max_size=3)


@dataclass(frozen=True)
class Step:
    """The output of the model and the reply of the client."""

    reasoning: str
    text: str
    calls: tuple[dict[str, Any], ...]
    reply: str


@st.composite
def steps(draw: st.DrawFn) -> Step:
    calls = draw(st.lists(GIVEN, max_size=2))
    text = draw(TEXT) if not calls or draw(st.booleans()) else ""
    return Step(draw(TEXT), text, tuple(calls), draw(TEXT))


CONVERSATIONS = st.lists(steps(), min_size=1, max_size=3)


def _blocks(step: Step, loaded: Model, *, with_reasoning: bool) -> list[OutputBlock]:
    """Return the blocks of a step that the template can render."""
    facts = loaded.profile
    calls = step.calls if facts.many_calls else step.calls[:1]
    text = step.text if facts.text_with_calls or not calls else ""
    blocks: list[OutputBlock] = [ReasoningBlock(step.reasoning)] if with_reasoning else []
    blocks += [TextBlock(text)] if text else []
    return [*blocks, *(ToolCallBlock("", "run", json.dumps(call)) for call in calls)]


def _next_turns(generated: GeneratedTurn, step: Step) -> list[Turn]:
    if generated.calls:
        return [results(generated, *(f"{step.reply} {at}" for at in range(len(generated.calls))))]
    return [user(step.reply)]


@cache
def _cold(pair: Pair) -> Cluster:
    """Prepare a request on a server without a ledger."""
    return make_cluster("client", model=model(pair), keys=KEYS)


async def _canonical(pair: Pair, before: list[Turn], turn: Turn) -> list[int]:
    """Return the ids that the template renders for a turn; none if it changes the prompt before."""
    cold = _cold(pair)
    prompt = (await cold.prepare(before)).prompt.ids
    ids = [b.id for b in turn.blocks if isinstance(b, ToolCallBlock)]
    last = results_for(ids) if ids else user("x")
    whole = (await cold.prepare([*before, turn, last])).prompt.ids
    stops = cold.model.stop_ids
    rest = whole[len(prompt) :]
    if whole[: len(prompt)] != prompt or not stops & set(rest):
        return []
    return list(rest[: next(at for at, id in enumerate(rest) if id in stops) + 1])


def results_for(ids: list[str]) -> Turn:
    return Turn("tool", tuple(ToolResultBlock(id, (TextBlock("x"),)) for id in ids))


# The template renders the system text only into a user turn at the end of the conversation: its
# rendering of a tool loop has no system text.
MOVING = ("Mistral-Nemo",)
STEADY = [pair for pair in PAIRS if pair.name not in MOVING]


@pytest.mark.parametrize("pair", STEADY, ids=lambda pair: pair.name)
@given(conversation=CONVERSATIONS)
@EXAMPLES
def test_a_grown_prompt_equals_the_cold_prompt(pair: Pair, conversation: list[Step]) -> None:
    """Reasoning is included only if the generation prompt opens it; else it would be closed."""
    require(pair)
    loaded = model(pair)
    with_reasoning = bool(loaded.profile.reasoning_opener)

    async def check() -> int:
        cluster, cold = make_cluster(model=loaded), _cold(pair)
        generated: GeneratedTurn | None = None
        new_turns = [user("hi")]
        compared = 0
        for step in conversation:
            turn = Turn(
                "assistant", tuple(_numbered(_blocks(step, loaded, with_reasoning=with_reasoning)))
            )
            before = [*(generated.history if generated else ()), *new_turns]
            ids = await _canonical(pair, before, turn)
            if not ids:
                break
            generated = await cluster.generate(generated, new_turns, ids)
            new_turns = _next_turns(generated, step)
            grown = await cluster.prepare([*generated.history, *new_turns])
            plain = await cold.prepare([*generated.history, *new_turns])
            assert not plain.prompt.exact_turns
            if not grown.prompt.reasoning_dropped:
                assert grown.prompt.origin == "grown"
            assert grown.prompt.ids == plain.prompt.ids, _difference(
                loaded, grown.prompt.ids, plain.prompt.ids
            )
            compared += 1
        return compared

    assume(run(check()) > 0)


def _numbered(blocks: list[OutputBlock]) -> list[OutputBlock]:
    numbered: list[OutputBlock] = []
    for at, block in enumerate(blocks):
        if isinstance(block, ToolCallBlock):
            block = ToolCallBlock(f"c{at}", block.name, block.arguments)
        numbered.append(block)
    return numbered


def _difference(loaded: Model, one: "array[int]", other: "array[int]") -> str:
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), -1)
    around = [loaded.tokenizer.decode(ids[max(at - 8, 0) : at + 12]) for ids in (one, other)]
    return f"{around[0]!r} and {around[1]!r}"


DROPPING = [pair for pair in PAIRS if pair.reasoning_parser != "none"]


@pytest.mark.parametrize("pair", DROPPING, ids=lambda pair: pair.name)
@given(conversation=CONVERSATIONS)
@EXAMPLES
def test_a_resumed_prompt_equals_the_cold_prompt(pair: Pair, conversation: list[Step]) -> None:
    require(pair)
    loaded = model(pair)

    async def check() -> None:
        cluster, cold = make_cluster(model=loaded), _cold(pair)
        generated: GeneratedTurn | None = None
        new_turns = [user("hi")]
        for step in conversation:
            generated = await cluster.generate(
                generated, new_turns, _blocks(step, loaded, with_reasoning=True)
            )
            new_turns = _next_turns(generated, step)
            for ending in (new_turns, [*new_turns, *_closing(generated)]):
                prepared = await cluster.prepare([*generated.history, *ending])
                if prepared.prompt.origin == "resumed":
                    plain = await cold.prepare([*generated.history, *ending])
                    assert prepared.prompt.ids == plain.prompt.ids, _difference(
                        loaded, prepared.prompt.ids, plain.prompt.ids
                    )

    run(check())


def _closing(generated: GeneratedTurn) -> list[Turn]:
    """Return an assistant turn made by the client, and another user turn."""
    return [Turn("assistant", (TextBlock("Well."),)), user("And now?")] if generated.calls else []
