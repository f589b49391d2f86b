"""Reasoning budgets and token limits in every notation of reasoning.

Markers are not tokens in these tests: each byte is a token, so a marker can be split anywhere.
"""

import asyncio
from dataclasses import replace
from functools import cache

import msgspec
import pytest
from collecting_sink import run_and_collect

from dovetail.demo.session import CHAT_TEMPLATE, build_demo_model
from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model, ModelParsers, ProbedTemplate
from dovetail.models.template_probe import probe_template
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.recovery import RecoveryPolicy
from dovetail.pipeline.registry import TokenModel
from dovetail.prompt.template import ChatTemplate
from dovetail.routing.pool import ReplicaPool
from dovetail_model import (
    Fold,
    Identity,
    Message,
    ReasoningBlock,
    Request,
    Sampling,
    TextBlock,
    Thinking,
    Turn,
    Usage,
)
from dovetail_parsers import families, resolve_family, write_message
from dovetail_tokenizers import ByteTokenizer

Pair = tuple[str | None, str]


@cache
def _frame(pair: Pair) -> tuple[str, str]:
    """Return the start and the end marker of reasoning in this notation."""
    family = resolve_family(pair[0] or pair[1])
    assert family is not None
    if family.unified is None:
        family = replace(family, pairs_with=pair[1])
    opening, _, closing = write_message([ReasoningBlock("\0")], family).partition("\0")
    return opening, closing


#: One pair of parsers per notation of reasoning.
NOTATIONS = {
    _frame(pair): pair
    for family in families()
    if (pair := (family.tool_parser, family.reasoning_parser or ""))[1]
}
REASONING = "0123456789 é漢 " * 8
TEXT = "So it is, and ever will be."
LAST_USER = """\
{%- set ns = namespace(at=0) %}{% for message in messages %}
{%- if message.role == 'user' %}{% set ns.at = loop.index0 %}{% endif %}{% endfor %}"""
USER_TURN = Turn("user", (TextBlock("Is it so?"),))


@cache
def _model(pair: Pair) -> Model:
    tokenizer = ByteTokenizer(("<|im_start|>", "<|im_end|>"))
    stop = tokenizer.controls["<|im_end|>"]
    parsers = ModelParsers(*pair, "test")
    return replace(
        build_demo_model(), tokenizer=tokenizer, parsers=parsers, stop_ids=frozenset({stop})
    )


@cache
def _preparer(pair: Pair) -> ChatPreparer:
    return ChatPreparer(_model(pair), Ledger(MemoryLedgerStore()), Keyring([bytes(32)]))


class ReasoningEngine:
    """An engine that generates reasoning, its end marker if tokens are left, and then text."""

    name = "thinker"
    capabilities = EngineCapabilities()

    def __init__(self, model: Model, pair: Pair, reasoning: str) -> None:
        self._tokenizer = model.tokenizer
        self._stop = min(model.stop_ids)
        opening, closing = _frame(pair)
        self.closing = list(model.reasoning_end_ids)
        self._whole = self._tokenizer.encode(opening + reasoning + closing + TEXT)
        #: End the turn inside reasoning.
        self.ends_in_reasoning = False
        self._reasoning_ids = self._tokenizer.encode(opening + reasoning)
        self._text_ids = self._tokenizer.encode(TEXT)
        self.requests: list[EngineRequest] = []
        self.outputs: list[list[int]] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(True)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.requests.append(request)
        closed = request.prompt[-len(self.closing) :].tolist() == self.closing
        whole = self._reasoning_ids if self.ends_in_reasoning else self._whole
        ids = [*(self._text_ids if closed else whole), self._stop][: request.max_tokens]
        self.outputs.append([])
        for at, id in enumerate(ids, 1):
            finish = "stop" if id == self._stop else "length" if at == len(ids) else None
            self.outputs[-1].append(id)
            if not sink.push(TokenDelta([id], finish=finish)):  # type: ignore[arg-type]
                return


class BudgetRun:
    """One request with a reasoning budget, and the engine that serves it."""

    def __init__(self, pair: Pair, reasoning: str, budget: int, max_tokens: int) -> None:
        self.model = _model(pair)
        self.engine = ReasoningEngine(self.model, pair, reasoning)
        self.preparer = _preparer(pair)
        self.entry = TokenModel(("m",), self.model, self.preparer, ReplicaPool([self.engine]))
        thinking, sampling = Thinking(budget=budget), Sampling(max_tokens=max_tokens)
        self.request = Request("m", (USER_TURN,), thinking=thinking, sampling=sampling)
        self.usage = Usage()

    async def execute(self) -> Message:
        fold = Fold()
        for event in await run_and_collect(self.entry, self.request):
            fold.add(event)
            self.usage = event if isinstance(event, Usage) else self.usage
        return fold.message()

    @property
    def in_cache(self) -> list[int]:
        """All tokens that the engine has prefilled and generated."""
        return [*self.engine.requests[-1].prompt, *self.engine.outputs[-1]]


def _reasoning_and_text(message: Message) -> tuple[str, str]:
    reasoning = "".join(b.text for b in message.blocks if isinstance(b, ReasoningBlock))
    return reasoning, "".join(b.text for b in message.blocks if isinstance(b, TextBlock))


async def _check(pair: Pair, budget: int, max_tokens: int) -> None:
    """Check that no marker is emitted, and that all tokens are counted and in the next prompt."""
    run = BudgetRun(pair, REASONING, budget, max_tokens)
    message = await run.execute()
    reasoning, text = _reasoning_and_text(message)
    assert REASONING.startswith(reasoning.rstrip("\ufffd"))  # the limit may split a character
    assert TEXT.startswith(text)
    assert message.finish == "length"
    whole = run.in_cache
    assert run.usage.output_tokens == len(whole) - len(run.engine.requests[0].prompt) <= max_tokens
    turns = (USER_TURN, Turn("assistant", message.blocks), Turn("user", (TextBlock("Why?"),)))
    prompt = (await run.preparer.prepare(Request("m", turns))).prompt
    assert prompt.ids[: len(whole)].tolist() == whole
    assert prompt.exact_turns == {1}


@pytest.mark.parametrize("pair", NOTATIONS.values(), ids=str)
def test_reasoning_is_closed_with_a_complete_marker_or_not_at_all(pair: Pair) -> None:
    opening, closing = (len(text.encode()) for text in _frame(pair))

    async def every_limit() -> None:
        for budget in (1, opening + 12):  # the second ends inside a character
            spent = max(budget, opening + 1)
            for max_tokens in range(spent, spent + closing + 6):
                await _check(pair, budget, max_tokens)

    asyncio.run(every_limit())


@pytest.mark.parametrize("pair", NOTATIONS.values(), ids=str)
def test_an_end_marker_begun_by_the_model_is_not_repeated(pair: Pair) -> None:
    """If the budget ends inside the marker, no second marker follows its first half."""
    opening, closing = (len(text.encode()) for text in _frame(pair))

    async def every_budget() -> None:
        for budget in range(opening + 3, opening + 3 + closing):
            run = BudgetRun(pair, "Hm.", budget, 1000)
            message = await run.execute()
            reasoning, text = _reasoning_and_text(message)
            assert (reasoning.rstrip(), text) == ("Hm.", TEXT)

    asyncio.run(every_budget())


@pytest.mark.parametrize("pair", NOTATIONS.values(), ids=str)
def test_reasoning_that_repeats_a_partial_closing_is_closed(pair: Pair) -> None:
    opening, closing = (text.encode() for text in _frame(pair))
    budget = len(opening) + 8
    half = closing.decode().strip()[:1]
    run = BudgetRun(pair, half * 500, budget, 1000)
    if not run.model.reasoning_end_ids:
        pytest.skip("nothing is known that closes reasoning of this family")
    message = asyncio.run(run.execute())
    assert _reasoning_and_text(message)[1] == TEXT
    max_tokens = budget + 4 * len(closing) + len(TEXT.encode()) + 2
    assert run.usage.output_tokens <= max_tokens


def test_divergence_is_attributed_to_a_template_that_drops_reasoning() -> None:
    shown = "message.reasoning_content"
    template = ChatTemplate(
        LAST_USER + CHAT_TEMPLATE.replace(f"if {shown}", f"if loop.index0 > ns.at and {shown}")
    )
    chat_template = ProbedTemplate(template, probe_template(template))
    pair = NOTATIONS["<think>\n", "\n</think>\n\n"]
    model = replace(_model(pair), chat_template=chat_template, tool_chat_template=chat_template)

    async def both_turns(max_tokens: int) -> None:
        run = BudgetRun(pair, REASONING, 12, max_tokens)
        run.preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]))
        run.entry = TokenModel(("m",), model, run.preparer, ReplicaPool([run.engine]))
        run.request = msgspec.structs.replace(run.request, identity=Identity(session="s"))
        message = await run.execute()
        turns = (USER_TURN, Turn("assistant", message.blocks), Turn("user", (TextBlock("Why?"),)))
        next_request = msgspec.structs.replace(run.request, turns=turns)
        prepared = await run.preparer.prepare(next_request)
        assert not prepared.prompt.exact_turns
        assert prepared.diagnosis.reason == "policy"

    for max_tokens in (13, 20, 30):
        asyncio.run(both_turns(max_tokens))


def test_output_that_ends_in_reasoning_has_no_closing() -> None:
    pair = NOTATIONS["<think>\n", "\n</think>\n\n"]
    room = 12 + len("\n</think>\n\n")
    run = BudgetRun(pair, REASONING, 12, room)
    message = asyncio.run(run.execute())
    assert len(run.engine.requests) == 1
    assert run.usage.output_tokens == len(run.engine.outputs[0]) < room
    assert _reasoning_and_text(message)[1] == ""


@pytest.mark.parametrize("pair", NOTATIONS.values(), ids=str)
def test_an_end_inside_reasoning_is_recovered_in_every_notation(pair: Pair) -> None:
    run = BudgetRun(pair, "Hm, hm", 10_000, 1000)
    if not run.model.reasoning_end_ids:
        pytest.skip("nothing is known that closes reasoning of this family")
    run.engine.ends_in_reasoning = True
    run.entry = replace(run.entry, recovery=RecoveryPolicy(frozenset({"reasoning"})))

    async def both_turns() -> None:
        message = await run.execute()
        reasoning, text = _reasoning_and_text(message)
        assert (reasoning.strip(), text) == ("Hm, hm", TEXT)
        assert len(run.engine.requests) == 2
        whole = run.in_cache
        turns = (USER_TURN, Turn("assistant", message.blocks), Turn("user", (TextBlock("Why?"),)))
        prompt = (await run.preparer.prepare(Request("m", turns))).prompt
        assert prompt.ids[: len(whole)].tolist() == whole
        assert prompt.exact_turns == {1}

    asyncio.run(both_turns())
