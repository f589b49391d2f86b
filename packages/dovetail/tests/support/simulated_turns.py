"""Turns as a server process handles them: recognize the history, announce, generate, record.

`PipelineTurn` renders prompts like the server. `LedgerTurn` uses only the ledger: its prompts
consist of the numbers of the spliced turns, so that it is several times as fast.
"""

import re
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Protocol

from forked_histories import KEYS, reasoning_text, small_model
from simulated_stores import wall_time

from dovetail.ledger.entry import (
    FINISH_INTERRUPTED,
    TOKEN_ID_TYPECODE,
    EntrySpan,
    LedgerEntry,
    create_entry_id,
    normalize_session_name,
    pack_ids,
)
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.recognition import TurnRecognizer
from dovetail.ledger.recognized_history import RecognitionScope, RecognizedHistory
from dovetail.ledger.restoration import SealRestorer
from dovetail.ledger.seal import Sealer
from dovetail.ledger.store import OpenTurn
from dovetail.ledger.turn_digest import digest_turn, extend_chain
from dovetail.models.loader import RendererCache
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.prompt.prefix_diagnostics import count_common_ids
from dovetail_model import Request, TextBlock, Turn

_ASSISTANT = re.compile(r"<\|im_start\|>assistant\n(?:<think>\nreason(\d+)\.)?")
_NOT_SPLICED = 0


class ServedTurn(Protocol):
    """A turn of a server process.

    `spliced`: for each assistant turn of the history, the number of its reasoning in the prompt.
    `chains`: the chains of these turns.
    """

    @property
    def entry_id(self) -> str: ...

    @property
    def spliced(self) -> Sequence[int | None]: ...

    @property
    def chains(self) -> Sequence[bytes]: ...

    async def open(self) -> None: ...

    def generate(self, text: str, *, finish: bool = False) -> None: ...

    async def record(self) -> None: ...


class TurnServer(Protocol):
    """The part of a process that serves turns."""

    async def prepare(self, request: Request, number: int) -> ServedTurn: ...


@cache
def shared_renderers() -> RendererCache:
    """Processes share renderers: creating them takes longer than a history, and they are pure."""
    return RendererCache(small_model())


class PipelineTurn:
    """A turn of the pipeline."""

    def __init__(self, preparer: ChatPreparer, prepared: PreparedRequest, number: int) -> None:
        self._preparer = preparer
        self._prepared = prepared
        self._pending = reasoning_text(f"reason{number}.")
        self._generation = preparer.create_generation(prepared, lambda: "call_0")
        self.entry_id = self._generation.entry_id
        prompt = small_model().tokenizer.decode(prepared.prompt.ids)
        *shown, _ = _ASSISTANT.findall(prompt)
        self.spliced = [int(number) if number else None for number in shown]
        self.chains = prepared.prompt.history.digests[1::2]

    async def open(self) -> None:
        await self._preparer.open_turn(self._prepared, self._generation)

    def generate(self, text: str, *, finish: bool = False) -> None:
        ids = small_model().tokenizer.encode(self._pending + text)
        self._pending = ""
        if not finish:
            self._generation.feed(ids)
            return
        self._generation.feed([*ids, min(small_model().stop_ids)])
        self._generation.finish()

    async def record(self) -> None:
        await self._preparer.record(self._prepared, self._generation)


class PipelineServer:
    """Serves turns with the pipeline of the server."""

    def __init__(self, ledger: Ledger) -> None:
        self._preparer = ChatPreparer(small_model(), ledger, KEYS, clock=wall_time)

    async def prepare(self, request: Request, number: int) -> PipelineTurn:
        return PipelineTurn(self._preparer, await self._preparer.prepare(request), number)


class LedgerTurn:
    """A turn whose only token is its number."""

    def __init__(
        self, ledger: Ledger, history: RecognizedHistory, request: Request, number: int
    ) -> None:
        self._ledger = ledger
        self._history = history
        self._session = request.identity.session
        self._number = number
        self._text = ""
        self._finished = False
        self._prompt = _render(history, request.turns)
        self.entry_id = create_entry_id()
        self.spliced = [token or None for token in self._prompt]
        self.chains = history.digests[1::2]

    async def open(self) -> None:
        session = normalize_session_name(self._session or "")
        await self._ledger.open_turn(OpenTurn("", self.entry_id, self._history.chain, session))

    def generate(self, text: str, *, finish: bool = False) -> None:
        self._text += text
        self._finished = finish

    async def record(self) -> None:
        await self._ledger.record(self._entry(), self._prompt)

    def _entry(self) -> LedgerEntry:
        history, parent = self._history, self._history.parent
        known = history.parent_token_ids
        common = count_common_ids(known[:], self._prompt) if known is not None else 0
        shown = digest_turn(Turn("assistant", (TextBlock(self._text),)))
        session = normalize_session_name(self._session or "") or (parent.session if parent else "")
        return LedgerEntry(
            id=self.entry_id,
            tenant="",
            model="m",
            parent=parent.id if parent is not None else None,
            prefix_tokens=common,
            suffix=pack_ids(self._prompt[common:]),
            generated=pack_ids([self._number]),
            stop=None,
            spans=(
                EntrySpan("reasoning", "", f"reason{self._number}."),
                EntrySpan("text", self._text, self._text, 1),
            ),
            chain_before=history.chain,
            chain=extend_chain(_chain_key(), history.chain, shown.digest),
            head=b"",
            finish="stop" if self._finished else FINISH_INTERRUPTED,
            lineage=history.lineage,
            session=session or self.entry_id,
            names_session=bool(self._session),
        )


def _render(history: RecognizedHistory, turns: Sequence[Turn]) -> "array[int]":
    """Return the numbers of the spliced turns: those of the parent, if the prompt extends it."""
    prompt, start = array(TOKEN_ID_TYPECODE), 0
    if history.anchor_index is not None and history.parent_token_ids is not None:
        prompt, start = history.parent_token_ids[:], history.anchor_index + 1
    for at in range(start, len(turns)):
        if turns[at].role == "assistant":
            entry = history.entries.get(at)
            prompt.append(array(TOKEN_ID_TYPECODE, entry.generated)[0] if entry else _NOT_SPLICED)
    return prompt


@cache
def _chain_key() -> bytes:
    return KEYS.chain_key("")


class LedgerServer:
    """Serves turns with the ledger alone."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        restorer = SealRestorer(Sealer(KEYS), shared_renderers().default.encode_blocks)
        self._recognizer = TurnRecognizer(ledger, restorer)

    async def prepare(self, request: Request, number: int) -> LedgerTurn:
        session = request.identity.session
        scope = RecognitionScope("", _chain_key(), "m", session=session)
        match = await self._recognizer.match_turns(request.turns, scope)
        history = await self._recognizer.resolve(match, scope)
        return LedgerTurn(self._ledger, history, request, number)
