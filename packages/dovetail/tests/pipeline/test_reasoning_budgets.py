"""Thoughts that meet their budget and the answer's limit, in every notation of thoughts.

No marker is a token here: each is as many tokens as it has bytes, and can be cut anywhere.
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
    """What opens a thought in this notation, and what closes it."""
    family = resolve_family(pair[0] or pair[1])
    assert family is not None
    if family.unified is None:
        family = replace(family, pairs_with=pair[1])
    opening, _, closing = write_message([ReasoningBlock("\0")], family).partition("\0")
    return opening, closing


#: One pair of parsers for each way to write a thought.
NOTATIONS = {
    _frame(pair): pair
    for family in families()
    if (pair := (family.tool_parser, family.reasoning_parser or ""))[1]
}
THOUGHT = "0123456789 é漢 " * 8
ANSWER = "So it is, and ever will be."
LAST_USER = """\
{%- set ns = namespace(at=0) %}{% for message in messages %}
{%- if message.role == 'user' %}{% set ns.at = loop.index0 %}{% endif %}{% endfor %}"""
ASKED = Turn("user", (TextBlock("Is it so?"),))


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


class Thinker:
    """An engine that thinks, closes its thought if it gets so far, and answers behind it."""

    name = "thinker"
    capabilities = EngineCapabilities()

    def __init__(self, model: Model, pair: Pair, thought: str) -> None:
        self._tokenizer = model.tokenizer
        self._stop = min(model.stop_ids)
        opening, closing = _frame(pair)
        self.closing = list(model.reasoning_end_ids)
        self._whole = self._tokenizer.encode(opening + thought + closing + ANSWER)
        self._answer = self._tokenizer.encode(ANSWER)
        self.asked: list[EngineRequest] = []
        self.made: list[list[int]] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(True)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.asked.append(request)
        closed = request.prompt[-len(self.closing) :].tolist() == self.closing
        ids = [*(self._answer if closed else self._whole), self._stop][: request.max_tokens]
        self.made.append([])
        for at, id in enumerate(ids, 1):
            finish = "stop" if id == self._stop else "length" if at == len(ids) else None
            self.made[-1].append(id)
            if not sink.push(TokenDelta([id], finish=finish)):  # type: ignore[arg-type]
                return


class Told:
    """An answer, and what the engine has of it."""

    def __init__(self, pair: Pair, thought: str, budget: int, most: int) -> None:
        self.model = _model(pair)
        self.engine = Thinker(self.model, pair, thought)
        self.preparer = _preparer(pair)
        self.served = TokenModel(("m",), self.model, self.preparer, ReplicaPool([self.engine]))
        thinking, sampling = Thinking(budget=budget), Sampling(max_tokens=most)
        self.request = Request("m", (ASKED,), thinking=thinking, sampling=sampling)
        self.usage = Usage()

    async def tell(self) -> Message:
        fold = Fold()
        for event in await run_and_collect(self.served, self.request):
            fold.add(event)
            self.usage = event if isinstance(event, Usage) else self.usage
        return fold.message()

    @property
    def in_cache(self) -> list[int]:
        """All that the engine has read and said."""
        return [*self.engine.asked[-1].prompt, *self.engine.made[-1]]


def _said(message: Message) -> tuple[str, str]:
    thought = "".join(b.text for b in message.blocks if isinstance(b, ReasoningBlock))
    return thought, "".join(b.text for b in message.blocks if isinstance(b, TextBlock))


async def _check(pair: Pair, budget: int, most: int) -> None:
    """Nothing of a marker is told; all that the engine has is counted, and comes back."""
    told = Told(pair, THOUGHT, budget, most)
    message = await told.tell()
    thought, text = _said(message)
    assert THOUGHT.startswith(thought.rstrip("\ufffd"))  # the limit may cut a character
    assert ANSWER.startswith(text)
    assert message.finish == "length"
    whole = told.in_cache
    assert told.usage.output_tokens == len(whole) - len(told.engine.asked[0].prompt) <= most
    turns = (ASKED, Turn("assistant", message.blocks), Turn("user", (TextBlock("Why?"),)))
    prompt = (await told.preparer.prepare(Request("m", turns))).prompt
    assert prompt.ids[: len(whole)].tolist() == whole
    assert prompt.exact_turns == {1}


@pytest.mark.parametrize("pair", NOTATIONS.values(), ids=str)
def test_a_thought_is_closed_with_all_of_its_marker_or_not_at_all(pair: Pair) -> None:
    opening, closing = (len(text.encode()) for text in _frame(pair))

    async def every_limit() -> None:
        for budget in (1, opening + 12):  # the second ends within a character
            spent = max(budget, opening + 1)
            for most in range(spent, spent + closing + 6):
                await _check(pair, budget, most)

    asyncio.run(every_limit())


@pytest.mark.parametrize("pair", NOTATIONS.values(), ids=str)
def test_a_closing_that_the_model_has_begun_is_its_own(pair: Pair) -> None:
    """Where the budget ends within it, no second one is put behind its first half."""
    opening, closing = (len(text.encode()) for text in _frame(pair))

    async def every_budget() -> None:
        for budget in range(opening + 3, opening + 3 + closing):
            told = Told(pair, "Hm.", budget, 1000)
            message = await told.tell()
            thought, text = _said(message)
            assert (thought.rstrip(), text) == ("Hm.", ANSWER)

    asyncio.run(every_budget())


@pytest.mark.parametrize("pair", NOTATIONS.values(), ids=str)
def test_a_thought_that_begins_a_closing_for_ever_is_closed(pair: Pair) -> None:
    opening, closing = (text.encode() for text in _frame(pair))
    budget = len(opening) + 8
    half = closing.decode().strip()[:1]
    told = Told(pair, half * 500, budget, 1000)
    if not told.model.reasoning_end_ids:
        pytest.skip("nothing is known that closes a thought of this family")
    message = asyncio.run(told.tell())
    assert _said(message)[1] == ANSWER
    most = budget + 4 * len(closing) + len(ANSWER.encode()) + 2
    assert told.usage.output_tokens <= most


def test_where_the_template_drops_thoughts_that_is_why_the_next_prompt_differs() -> None:
    shown = "message.reasoning_content"
    template = ChatTemplate(
        LAST_USER + CHAT_TEMPLATE.replace(f"if {shown}", f"if loop.index0 > ns.at and {shown}")
    )
    speech = ProbedTemplate(template, probe_template(template))
    pair = NOTATIONS["<think>\n", "\n</think>\n\n"]
    model = replace(_model(pair), chat_template=speech, tool_chat_template=speech)

    async def both_turns(most: int) -> None:
        told = Told(pair, THOUGHT, 12, most)
        told.preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]))
        told.served = TokenModel(("m",), model, told.preparer, ReplicaPool([told.engine]))
        told.request = msgspec.structs.replace(told.request, identity=Identity(session="s"))
        message = await told.tell()
        turns = (ASKED, Turn("assistant", message.blocks), Turn("user", (TextBlock("Why?"),)))
        asked = msgspec.structs.replace(told.request, turns=turns)
        prepared = await told.preparer.prepare(asked)
        assert not prepared.prompt.exact_turns
        assert prepared.diagnosis.reason == "policy"

    for most in (13, 20, 30):
        asyncio.run(both_turns(most))


def test_an_answer_that_ends_in_its_thought_has_no_closing_anywhere() -> None:
    pair = NOTATIONS["<think>\n", "\n</think>\n\n"]
    room = 12 + len("\n</think>\n\n")
    told = Told(pair, THOUGHT, 12, room)
    message = asyncio.run(told.tell())
    assert len(told.engine.asked) == 1
    assert told.usage.output_tokens == len(told.engine.made[0]) < room
    assert _said(message)[1] == ""
