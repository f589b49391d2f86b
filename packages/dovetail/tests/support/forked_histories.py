"""Small ledgers with many branches, and the histories that clients derive from them.

The model is a byte tokenizer with a small template that shows and keeps everything, so that a
prompt can be split into turns, and each turn compared with what is allowed there.
"""

import asyncio
from array import array
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec

from dovetail.ledger.entry import TOKEN_ID_TYPECODE
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.recognition import ReplayPolicy
from dovetail.models.files import TemplateSource
from dovetail.models.loader import Model, ModelParsers, ProbedTemplate
from dovetail.models.template_probe import probe_template
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.pipeline.rendering import PromptSettings
from dovetail.prompt.messages import ToolNames
from dovetail.prompt.template import ChatTemplate
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import (
    Block,
    Fold,
    Identity,
    OutputBlock,
    ReasoningBlock,
    Request,
    Sampling,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
)
from dovetail_tokenizers import ByteTokenizer

T = TypeVar("T")

BEGIN, END = "<|im_start|>", "<|im_end|>"
CONTROLS = (BEGIN, END, "<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = """
{%- if tools %}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{% if m.tool_call_id %}{{ m.tool_call_id }}: {% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
RUN = ToolSpec(
    "run",
    "Runs a command.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "count": {"type": "integer"},
            "background": {"type": "boolean", "default": False},
        },
    },
)
KEYS = Keyring([b"f" * 32])


@cache
def small_model() -> Model:
    """The smallest model that keeps everything: byte ids, reasoning in history, Hermes calls."""
    tokenizer = ByteTokenizer(CONTROLS)
    template = ChatTemplate(TEMPLATE)
    chat_template = ProbedTemplate(template, probe_template(template, {}))
    return Model(
        name="small",
        path=Path("small"),
        tokenizer=tokenizer,
        template_source=TemplateSource({"default": TEMPLATE}),
        chat_template=chat_template,
        tool_chat_template=chat_template,
        parsers=ModelParsers("hermes", "qwen3", "flags"),
        switches={},
        stop_ids=frozenset({tokenizer.controls[END]}),
        stop_strings=(END,),
        context_length=None,
        sampling=Sampling(),
    )


@dataclass(frozen=True, eq=False)
class GeneratedTurn:
    """A generated turn as its client received it, and its tokens."""

    tenant: str
    parent: "GeneratedTurn | None"
    before: tuple[Turn, ...]
    turn: Turn
    ids: "array[int]"
    entry: str
    prepared: PreparedRequest
    replica: int = 0

    @property
    def new_turns(self) -> tuple[Turn, ...]:
        """The turns since its parent."""
        return self.before[len(self.parent.history) if self.parent else 0 :]

    @property
    def history(self) -> tuple[Turn, ...]:
        return (*self.before, self.turn)

    @property
    def calls(self) -> list[ToolCallBlock]:
        return [block for block in self.turn.blocks if isinstance(block, ToolCallBlock)]

    @property
    def seals(self) -> list[str]:
        return [b.seal for b in self.turn.blocks if isinstance(b, ReasoningBlock) and b.seal]

    def ancestors(self) -> "Iterator[GeneratedTurn]":
        """Yield the turn and its ancestors, last first."""
        generated: GeneratedTurn | None = self
        while generated is not None:
            yield generated
            generated = generated.parent


@dataclass
class Cluster:
    """One preparer or several replicas, and all turns generated through them."""

    preparers: Sequence[ChatPreparer]
    model: Model
    system: str = "Be brief."
    session: str | None = None  # of generated turns
    generated: list[GeneratedTurn] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def request(
        self, turns: Sequence[Turn], tenant: str = "", session: str | None = None
    ) -> Request:
        identity = Identity(tenant=tenant, session=session)
        return Request(
            "m", tuple(turns), (TextBlock(self.system),), tools=(RUN,), identity=identity
        )

    async def prepare(
        self, turns: Sequence[Turn], tenant: str = "", session: str | None = None, replica: int = 0
    ) -> PreparedRequest:
        return await self.preparers[replica].prepare(self.request(turns, tenant, session))

    async def generate(
        self,
        parent: GeneratedTurn | None,
        new_turns: Sequence[Turn],
        output: "str | Sequence[OutputBlock] | list[int]",
        tenant: str = "",
        replica: int = 0,
        *,
        plain: bool = False,
    ) -> GeneratedTurn:
        """Generate a turn after an earlier one and new turns.

        The client replays what it received: unchanged, or without reasoning if it is a plain
        client.
        """
        history = parent.history if parent else ()
        before = (*(map(without_reasoning, history) if plain else history), *new_turns)
        prepared = await self.prepare(before, tenant, self.session, replica)
        preparer = self.preparers[replica]
        generation = preparer.create_generation(prepared, self._new_call_id)
        fold = Fold()
        for event in (*generation.feed(self._ids(output, prepared)), *generation.finish()):
            fold.add(event)
        await preparer.record(prepared, generation)
        turn = as_received(Turn("assistant", fold.message().blocks))
        entry = generation.build_entry().id
        generated = GeneratedTurn(
            tenant, parent, before, turn, generation.ids, entry, prepared, replica
        )
        self.generated.append(generated)
        return generated

    def _ids(
        self, output: "str | Sequence[OutputBlock] | list[int]", prepared: PreparedRequest
    ) -> list[int]:
        """The tokens of an output given as text, blocks or ids, with the stop token."""
        if not isinstance(output, str):
            ids = [word for word in output if isinstance(word, int)]
            if ids:
                return ids
            output = self._written([word for word in output if not isinstance(word, int)], prepared)
        return [*self.model.tokenizer.encode(output), min(self.model.stop_ids)]

    def _written(self, blocks: "Sequence[OutputBlock]", prepared: PreparedRequest) -> str:
        """Render blocks as the model writes them after this prompt."""
        writer = TurnWriter(self.model.tool_parser, self.model.reasoning_parser)
        end = self.model.tokenizer.decode(prepared.prompt.ids[-24:])
        turn = Turn("assistant", tuple(blocks))
        text = writer.write(turn, ToolNames(()), lambda text: text, end)
        assert text is not None
        return text

    def text(self, prepared: PreparedRequest) -> str:
        """A prompt as text."""
        return self.model.tokenizer.decode(prepared.prompt.ids)

    def _new_call_id(self) -> str:
        return f"call_{next(self._numbers):08x}"


def make_cluster(
    replay: ReplayPolicy = "auto",
    *,
    model: Model | None = None,
    keys: Keyring = KEYS,
    replicas: int = 1,
    uncached: bool = False,
) -> Cluster:
    """Create an empty cluster. Replicas share only their keys; `uncached` ones have no cache."""
    model = model or small_model()
    settings = PromptSettings(replay=replay)
    room = 1 if uncached else 1 << 26
    ledgers = [
        Ledger(MemoryLedgerStore(), cache_bytes=room, token_cache_bytes=room)
        for _ in range(replicas)
    ]
    return Cluster([ChatPreparer(model, ledger, keys, settings) for ledger in ledgers], model)


def as_received(turn: Turn) -> Turn:
    """Remove the raw text, which no client receives."""
    return Turn(turn.role, tuple(msgspec.structs.replace(b, raw="") for b in turn.blocks))


def user(text: str) -> Turn:
    return Turn("user", (TextBlock(text),))


def results(turn: GeneratedTurn, *texts: str) -> Turn:
    """The results of a turn's calls."""
    pairs = zip(turn.calls, texts, strict=True)
    blocks = tuple(ToolResultBlock(call.id, (TextBlock(text),)) for call, text in pairs)
    return Turn("tool", blocks)


def call_text(arguments: str, name: str = "run") -> str:
    """A call as the model writes it."""
    return f'\n<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def reasoning_text(text: str) -> str:
    return f"<think>\n{text}\n</think>\n\n"


def parts(ids: "array[int]", role: str = "assistant") -> "list[array[int]]":
    """The ids of each turn of a role in a prompt, without header and end."""
    tokenizer = small_model().tokenizer
    begin, end = tokenizer.controls[BEGIN], tokenizer.controls[END]
    header = array(TOKEN_ID_TYPECODE, tokenizer.encode(f"{role}\n"))
    found = []
    at = 0
    while begin in ids[at:]:
        start = ids.index(begin, at) + 1
        stop = ids.index(end, start) if end in ids[start:] else len(ids)
        if ids[start : start + len(header)] == header:
            found.append(ids[start + len(header) : stop])
        at = stop
    return found


def changed(turn: Turn, change: Callable[[Block], Block | None]) -> Turn:
    """Change each block of a turn; a block that is changed to None is removed."""
    blocks = (change(block) for block in turn.blocks)
    return Turn(turn.role, tuple(block for block in blocks if block is not None))


def map_reasoning(turn: Turn, change: Callable[[ReasoningBlock], ReasoningBlock]) -> Turn:
    return changed(turn, lambda b: change(b) if isinstance(b, ReasoningBlock) else b)


def map_calls(turn: Turn, change: Callable[[ToolCallBlock], ToolCallBlock]) -> Turn:
    return changed(turn, lambda b: change(b) if isinstance(b, ToolCallBlock) else b)


def without_reasoning(turn: Turn) -> Turn:
    return changed(turn, lambda b: None if isinstance(b, ReasoningBlock) else b)


def without_reasoning_text(turn: Turn) -> Turn:
    """Keep only the seal of reasoning, as some clients do."""
    return map_reasoning(turn, lambda b: ReasoningBlock("", b.seal))


def replace_reasoning(turn: Turn, text: str) -> Turn:
    """Replace the text of a turn's reasoning, under the same seals."""
    return map_reasoning(turn, lambda b: ReasoningBlock(text, b.seal))


def anonymous(turns: Sequence[Turn]) -> list[Turn]:
    """A history without any handle: no reasoning, and call ids generated by the client."""
    ids: dict[str, str] = {}

    def renamed(block: Block) -> Block | None:
        match block:
            case ReasoningBlock():
                return None
            case ToolCallBlock(id=id):
                return msgspec.structs.replace(block, id=ids.setdefault(id, f"mine-{len(ids)}"))
            case ToolResultBlock(call_id=id):
                return msgspec.structs.replace(block, call_id=ids.get(id, id))
        return block

    return [changed(turn, renamed) for turn in turns]


def run(work: Coroutine[object, object, T]) -> T:
    return asyncio.run(work)
