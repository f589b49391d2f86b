"""Render prompts and parse output with the server's own code, one session at a time.

A session goes through the same preparer, parser and ledger as the requests of a client, so its
token ids are those that the server would send to the engine.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from names import use_vocabulary

import dovetail
from dovetail.eval.tasks import SYSTEM_PROMPT
from dovetail.eval.tools import build_tool_specs
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model, load_model
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail_model import (
    Identity,
    Message,
    Request,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
)

TEMPLATE = Path(dovetail.__file__).parent / "models" / "templates" / "smollm2.jinja"


@dataclass(frozen=True)
class Head:
    """The fixed beginning of a harness's prompts. `shown_root` is the folder that it names."""

    harness: str
    system: str
    tools: tuple[ToolSpec, ...]
    shown_root: str = ""


def built_in_head(run: int) -> Head:
    """Return the head of `dovetail eval`, which begins with the number of a run."""
    return Head("builtin", f"Run {run:08}.\n{SYSTEM_PROMPT}", build_tool_specs())


def recorded_head(path: Path, harness: str, date: str, root: str) -> Head:
    """Return the head of a client's recorded request, with another date and folder.

    The file is the body of a Chat Completions request, with `date` and `root` as recorded.
    """
    body = json.loads(path.read_bytes())
    system = next(m["content"] for m in body["messages"] if m["role"] == "system")
    system = system.replace(body["recorded_date"], date).replace(body["recorded_root"], root)
    functions = [tool["function"] for tool in body["tools"]]
    tools = tuple(ToolSpec(f["name"], f["description"], f["parameters"]) for f in functions)
    return Head(harness, system, tools, root)


def load_smollm2(path: Path) -> Model:
    """Load the tokenizer and the template as `dovetail serve smollm2` does."""
    model = load_model(path, custom_template=TEMPLATE)
    tokenizer = model.tokenizer
    use_vocabulary(tokenizer.decode([id]) for id in range(tokenizer.size))
    return model


@dataclass
class Session:
    """One session with a model. Call `prompt` and `accept` in turn."""

    preparer: ChatPreparer
    request: Request
    calls_made: int = 0
    prepared: PreparedRequest | None = None
    spans: list[tuple[int, int, bool]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    inexact_turns: int = 0

    async def prompt(self) -> Sequence[int]:
        """Prepare the next prompt and return its token ids."""
        self.prepared = await self.preparer.prepare(self.request)
        ids = self.prepared.prompt.ids.tolist()
        if ids[: len(self.ids)] != self.ids:
            self.inexact_turns += 1
            self.spans = [span for span in self.spans if ids[: span[1]] == self.ids[: span[1]]]
        self.ids = ids
        return ids

    async def accept(self, output: Sequence[int], learn: bool = True) -> Message:
        """Parse the output of the model, including its stop token, and record the turn."""
        assert self.prepared is not None
        generation = self.preparer.create_generation(self.prepared, self._new_call_id)
        generation.feed(list(output))
        generation.finish()
        await self.preparer.record(self.prepared, generation)
        start = len(self.ids)
        self.ids = [*self.ids, *output]
        self.spans.append((start, len(self.ids), learn))
        message = generation.message()
        self._append(Turn("assistant", message.blocks))
        return message

    def add_results(self, results: Sequence[tuple[str, str, bool]]) -> None:
        """Add tool results, given as call id, text and whether the call failed."""
        blocks = tuple(
            ToolResultBlock(id, (TextBlock(text),), failed) for id, text, failed in results
        )
        self._append(Turn("tool", blocks))

    def add_user(self, text: str) -> None:
        self._append(Turn("user", (TextBlock(text),)))

    def _append(self, turn: Turn) -> None:
        self.request = msgspec.structs.replace(self.request, turns=(*self.request.turns, turn))

    def _new_call_id(self) -> str:
        self.calls_made += 1
        return f"call_{self.request.identity.session}_{self.calls_made}"


class ServingPath:
    """Creates sessions. `reset` drops the turns of finished sessions."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.stop_id = model.tokenizer.controls["<|im_end|>"]
        self._sessions = 0
        self.reset()

    def reset(self) -> None:
        ledger = Ledger(MemoryLedgerStore())
        self._preparer = ChatPreparer(self.model, ledger, Keyring([bytes(32)]))

    async def start_session(self, head: Head, prompt: str) -> Session:
        """Start a session with the first user text."""
        await self._preparer.start()
        self._sessions += 1
        request = Request(
            "smollm2",
            turns=(Turn("user", (TextBlock(prompt),)),),
            system=(TextBlock(head.system),),
            tools=head.tools,
            identity=Identity(session=f"s{self._sessions}"),
        )
        return Session(self._preparer, request)

    async def head_ids(self, head: Head) -> list[int]:
        """Return the ids that all sessions with this head begin with."""
        one, other = [(await (await self.start_session(head, text)).prompt()) for text in "ab"]
        same = next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        # End after the turn's end, where no text of the session can merge with the head.
        while one[same - 1] != self.stop_id:
            same -= 1
        return list(one[:same])


def calls_of(message: Message) -> list[ToolCallBlock]:
    return [block for block in message.blocks if isinstance(block, ToolCallBlock)]


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.blocks if isinstance(block, TextBlock))
