"""Constraints are built in a thread, once for all requests that wait for them."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.pipeline import guided_decoding
from dovetail.pipeline.guided_decoding import ConstraintBuilder, OutputConstraint
from dovetail_model import InvalidRequest, OutputFormat, Thinking, ToolChoice
from dovetail_parsers import GuidedGrammar

SYNTAXES: Any = ("gbnf",)
CHOICE = OutputFormat("choice", choices=("yes", "no"), field="guided_choice")


class SlowGrammar:
    """Replaces the grammar: waits until the event loop releases it."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.threads: list[threading.Thread] = []
        self.was_released: list[bool] = []

    def __call__(self, *_: object, **__: object) -> GuidedGrammar:
        self.threads.append(threading.current_thread())
        self.was_released.append(self.released.wait(5))
        return GuidedGrammar("gbnf", 'root ::= "yes"')


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowGrammar:
    grammar = SlowGrammar()
    monkeypatch.setattr(guided_decoding, "build_guided_grammar", grammar)
    return grammar


def builder() -> ConstraintBuilder:
    model: Any = SimpleNamespace(
        tool_parser=None, reasoning_parser=None, tokenizer=SimpleNamespace(controls={})
    )
    return ConstraintBuilder(model)


def prepared(output: OutputFormat = CHOICE) -> Any:
    request = SimpleNamespace(
        tools=(), tool_choice=ToolChoice(), output=output, thinking=Thinking()
    )
    return SimpleNamespace(request=request, prompt=SimpleNamespace(in_reasoning=False, opening=""))


def test_the_event_loop_runs_while_a_grammar_is_built(slow: SlowGrammar) -> None:
    async def check() -> None:
        building = asyncio.ensure_future(builder().build(prepared(), SYNTAXES))
        await asyncio.sleep(0)
        slow.released.set()
        assert (await building).constraint is not None
        assert slow.was_released == [True]
        assert slow.threads != [threading.main_thread()]

    asyncio.run(check())


def test_concurrent_requests_share_one_grammar(slow: SlowGrammar) -> None:
    async def check() -> None:
        one = builder()
        waiting = [asyncio.ensure_future(one.build(prepared(), SYNTAXES)) for _ in range(16)]
        await asyncio.sleep(0)
        waiting.pop().cancel()  # a client that disconnects
        slow.released.set()
        built = await asyncio.gather(*waiting)
        again = await one.build(prepared(), SYNTAXES)
        assert len(slow.threads) == 1
        assert all(constraint is again for constraint in built)

    asyncio.run(check())


def test_a_request_without_a_constraint_needs_no_thread(slow: SlowGrammar) -> None:
    async def check() -> None:
        slow.released.set()
        await builder().build(prepared(OutputFormat()), SYNTAXES)
        assert slow.threads == [threading.current_thread()]

    asyncio.run(check())


def test_an_error_is_raised_and_not_cached() -> None:
    async def check() -> None:
        one = builder()
        many = OutputFormat("choice", choices=("x",) * 10_001, field="guided_choice")
        for _ in range(2):
            with pytest.raises(
                InvalidRequest, match="guided_choice: must not have more than 10,000"
            ):
                await one.build(prepared(many), SYNTAXES)
        assert isinstance(await one.build(prepared(), SYNTAXES), OutputConstraint)

    asyncio.run(check())
