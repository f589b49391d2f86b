"""One answer from a scripted engine: thinking budgets, choices, what the engine is asked for."""

import asyncio
import secrets

import pytest

from dovetail.demo.model import demo_model
from dovetail.engines.scripted import ScriptedEngine, ScriptedOptions, parse_script
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.store.memory import MemoryStore
from dovetail.pipeline import answer
from dovetail.preparation import Preparer
from dovetail.routing import Pool
from dovetail.service import Served
from dovetail_model import (
    Fold,
    InvalidRequest,
    Message,
    OutputFormat,
    ReasoningBlock,
    Request,
    Sampling,
    TextBlock,
    Thinking,
    Turn,
)

LONG = "<think>" + "I wonder. " * 30 + "</think>It is so."


def _served(text: str = LONG) -> tuple[Served, ScriptedEngine]:
    model = demo_model()
    script = parse_script(f"- text: {text!r}\n")
    engine = ScriptedEngine(model.tokenizer, script, options=ScriptedOptions())
    preparer = Preparer(model, Ledger(MemoryStore()), Keyring([b"k" * 32]))
    return Served(("m",), model, preparer, Pool([engine])), engine


def _ask(served: Served, **changes: object) -> list[Message]:
    """The whole answer, one message a choice."""
    request = Request("m", (Turn("user", (TextBlock("Is it so?"),)),), **changes)  # type: ignore[arg-type]

    async def main() -> list[Message]:
        await served.engine.start()
        folds: dict[int, Fold] = {}
        async for choice, events in answer(
            served, request, lambda: f"call_{secrets.token_hex(12)}"
        ):
            for event in events:
                folds.setdefault(choice, Fold()).add(event)
        return [folds[at].message() for at in sorted(folds)]

    return asyncio.run(main())


def test_a_thought_that_has_spent_its_budget_is_closed() -> None:
    served, engine = _served()
    (message,) = _ask(served, thinking=Thinking(budget=40))
    thought, text = message.blocks
    assert isinstance(thought, ReasoningBlock)
    assert 30 <= len(thought.text) <= 45
    assert text.type == "text"
    first, second = engine.requests
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert message.usage.cached_tokens <= message.usage.input_tokens
    assert message.usage.input_tokens == len(first.prompt)


@pytest.mark.parametrize("most", [5, 41, 43, 60])
def test_a_closed_thought_does_not_exceed_the_limit(most: int) -> None:
    served, engine = _served()
    (message,) = _ask(served, thinking=Thinking(budget=40), sampling=Sampling(max_tokens=most))
    assert message.usage.output_tokens <= most
    assert all(asked.max_tokens > 0 for asked in engine.requests)


def test_what_was_demanded_of_the_answer_holds_behind_a_closed_thought() -> None:
    served, engine = _served()
    form = OutputFormat("json_schema", {"type": "object", "properties": {}}, strict=True)
    _ask(served, thinking=Thinking(budget=40), output=form)
    first, second = engine.requests
    assert first.constraint is not None
    assert second.constraint is not None
    assert "think" not in second.constraint.text


def test_choices_have_seeds_of_their_own() -> None:
    served, engine = _served("<think></think>Yes.")
    messages = _ask(served, sampling=Sampling(n=3, seed=7))
    assert len(messages) == 3
    assert sorted(asked.sampling.seed or 0 for asked in engine.requests) == [7, 8, 9]


def test_too_many_choices_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 16"):
        _ask(_served()[0], sampling=Sampling(n=17))
