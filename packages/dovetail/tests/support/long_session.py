"""A session of hundreds of turns, and the cost of each turn. Work is counted, never timed."""

import asyncio
import tracemalloc
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec
from agent_clients import Agent, ClaudeCode
from exactness_matrix import KEY, OFF, common_prefix
from real_models import PAIRS, Pair, model
from scripted_run import ScriptedRunner, ScriptedTurn

from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.rendering import PromptSettings
from dovetail.prompt.template import ChatTemplate
from dovetail.prompt.turn_writer import TurnWriter
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock
from dovetail_tokenizers import Tokenizer

LONG_PAIR = next(pair for pair in PAIRS if pair.name == "GLM-4.7")
LOOP = 10  # turns between two user turns


@dataclass(frozen=True)
class Cost:
    """One turn: whether it was exact, its cost, and what has to be prefilled.

    `encoded` are tokens encoded from text, `rendered` the messages passed to the template, `stored`
    the bytes written to the store, `memory` the bytes in use after the turn, `prefilled` the tokens
    after the common prefix of the prompt with the previous prompt and turn.
    """

    exact: bool
    origin: str
    prompt: int
    generated: int
    prefilled: int
    encoded: int
    rendered: int
    stored: int
    memory: int


@dataclass(frozen=True)
class LongSessionCost:
    """What a long session prefills: with the ledger, without it, and without normalized prompts."""

    pair: Pair
    turns: int
    generated: int
    prompt: int
    with_ledger: int
    without: int
    naive: int


@dataclass
class Counter:
    """The work since the last reading."""

    encoded: int = 0
    rendered: int = 0
    stored: int = 0

    def read(self) -> tuple[int, int, int]:
        reading = (self.encoded, self.rendered, self.stored)
        self.encoded = self.rendered = self.stored = 0
        return reading


class CountingTokenizer:
    """A tokenizer that counts the tokens that it encodes."""

    def __init__(self, tokenizer: Tokenizer, counter: Counter) -> None:
        self._tokenizer = tokenizer
        self._counter = counter

    @property
    def controls(self) -> Mapping[str, int]:
        return self._tokenizer.controls

    @property
    def size(self) -> int:
        return self._tokenizer.size

    def encode(self, text: str) -> list[int]:
        return self._count(self._tokenizer.encode(text))

    def encode_plain(self, text: str, *, first: bool = False) -> list[int]:
        return self._count(self._tokenizer.encode_plain(text, first=first))

    def pack_plain(self, text: str, *, first: bool = False) -> "array[int]":
        return array("I", self.encode_plain(text, first=first))

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(ids)

    def bytes_of(self, id: int) -> bytes:
        return self._tokenizer.bytes_of(id)

    def is_control(self, id: int) -> bool:
        return self._tokenizer.is_control(id)

    def _count(self, ids: list[int]) -> list[int]:
        self._counter.encoded += len(ids)
        return ids


class CountingTemplate(ChatTemplate):
    """A template that counts the messages that it renders."""

    counter: Counter

    def render(self, messages: Sequence[Mapping[str, Any]], *args: Any, **kwargs: Any) -> str:
        self.counter.rendered += len(messages)
        return super().render(messages, *args, **kwargs)


class CountingStore(MemoryLedgerStore):
    """A store that counts the bytes that it gets."""

    __slots__ = ("_counter",)

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter

    async def put(self, entry: LedgerEntry) -> None:
        self._counter.stored += len(msgspec.msgpack.encode(entry))
        await super().put(entry)


def counted(found: Model, counter: Counter) -> Model:
    """Return the model with its work counted."""
    template = CountingTemplate(found.template.text, found.template_source.special_tokens)
    template.counter = counter
    chat_template = replace(found.tool_chat_template, template=template)
    tokenizer = CountingTokenizer(found.tokenizer, counter)
    return replace(
        found, tokenizer=tokenizer, chat_template=chat_template, tool_chat_template=chat_template
    )


async def run_long_session(
    pair: Pair, turns: int, settings: PromptSettings | None = None, *, memory: bool = False
) -> list[Cost]:
    """Run user turns, tool loops and final messages, as Claude Code sends them."""
    counter, found = Counter(), model(pair)
    ledger = Ledger(CountingStore(counter))
    runner = ScriptedRunner(
        ChatPreparer(counted(found, counter), ledger, KEY, settings),
        found.tokenizer,
        found.tokenizer.controls[(pair.stops or found.stop_strings)[0]],
        TurnWriter(found.tool_parser, found.reasoning_parser),
    )
    agent, costs, before = ClaudeCode(), list[Cost](), array("I")
    agent.add_user_message("Please mend what is broken.")
    if memory:
        tracemalloc.start()
    try:
        for at in range(turns):
            counter.read()
            turn = await runner.run_blocks(
                agent, _output_blocks(at, found.reasoning_parser is not None)
            )
            await ledger.flush()
            _reply(agent, turn, at)
            costs.append(_cost(turn, before, counter.read(), memory))
            before = turn.token_ids
            runner.turns.clear()  # a server does not keep the prompts of all turns
    finally:
        if memory:
            tracemalloc.stop()
    return costs


@cache
def figures(pair: Pair, turns: int = 60) -> LongSessionCost:
    """Return the figures of one session."""
    unstable = replace(OFF, normalization=NormalizationOptions(strip_preamble=False))
    costs, without, naive = (
        asyncio.run(run_long_session(pair, turns, settings)) for settings in (None, OFF, unstable)
    )
    return LongSessionCost(
        pair,
        turns,
        generated=sum(cost.generated for cost in costs),
        prompt=costs[-1].prompt,
        with_ledger=sum(cost.prefilled for cost in costs),
        without=sum(cost.prefilled for cost in without),
        naive=sum(cost.prefilled for cost in naive),
    )


def _cost(
    turn: ScriptedTurn, before: "array[int]", work: tuple[int, int, int], memory: bool
) -> Cost:
    ids = turn.prepared.prompt.ids
    encoded, rendered, stored = work
    return Cost(
        exact=ids[: len(before)] == before,
        origin=turn.prepared.prompt.origin,
        prompt=len(ids),
        generated=len(turn.generation.ids),
        prefilled=len(ids) - common_prefix(before, ids),
        encoded=encoded,
        rendered=rendered,
        stored=stored,
        memory=tracemalloc.get_traced_memory()[0] if memory else 0,
    )


def _reply(agent: Agent, turn: ScriptedTurn, at: int) -> None:
    if not turn.calls:
        agent.add_user_message(f"And now part {at}?")
        return
    listing = "\n".join(f"src/part_{at}/file_{n}.py:{n * 7}: def function_{n}" for n in range(20))
    agent.add_results([(call, f"{call.name}\n{listing}") for call in turn.calls])


def _output_blocks(at: int, thinks: bool) -> list[OutputBlock]:
    """A turn with reasoning, two calls and reasoning between them, or a final message."""
    plan = f"Part {at} is next. " + "The caller expects a list, and gets None. " * 6
    if at % LOOP == LOOP - 1:
        blocks: list[OutputBlock] = [
            ReasoningBlock(plan),
            TextBlock(f"Part {at} is done.\n\n{plan}"),
        ]
    else:
        look = f'{{"command": "cd /repo && grep -n part_{at} src", "timeout": 5000.0}}'
        edit = f'{{"path": "src/{at}.py", "new": "def f():\\n    return [{at}]  \\n"}}'
        blocks = [
            ReasoningBlock(plan),
            ToolCallBlock("", "run_command", look),
            ReasoningBlock(f"Then {at}."),
            ToolCallBlock("", "edit_file", edit),
        ]
    return [block for block in blocks if thinks or not isinstance(block, ReasoningBlock)]
