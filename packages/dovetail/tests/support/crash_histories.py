"""Histories of visibly equal conversations on servers that crash and stores that fail.

Every turn has reasoning of its own, which its client drops; the visible texts are few, so that many
conversations look the same. Processes crash at every step of a turn, writes are refused, delayed,
or executed without a response, and entries expire. No prompt may contain reasoning of another
conversation. `run` is the entry point; a failure names the seed of its history.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from forked_histories import KEYS, RUN, reasoning_text, small_model, user

from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.store import ChainLookup, OpenTurn
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.storage.faults import StoreError
from dovetail_model import Identity, Request, TextBlock, Turn

MAX_AGE = 100.0
STEPS = 14  # per history
MAX_TURNS = 3  # per conversation
USERS = ("hi", "more")
TEXTS = ("ok", "ok then")
T = TypeVar("T")

Mode = Literal["ok", "refuse", "lose_response", "lag"]
MODES: tuple[Mode, ...] = ("ok", "ok", "ok", "ok", "refuse", "lose_response", "lag")
CrashPoint = Literal[
    "none", "before_open", "after_open", "after_first_event", "before_commit", "after_commit"
]
CRASH_POINTS: tuple[CrashPoint, ...] = (
    *("none",) * 10,
    *("before_open", "after_open", "after_first_event", "before_commit", "after_commit"),
)
_REASONING = re.compile(r"reason(\d+)\.")


class WrongSplice(AssertionError):
    """A prompt contains reasoning of another conversation."""


@dataclass
class Result:
    """Counts over histories.

    `turns`: replayed turns with dropped reasoning.
    `spliced`: those whose reasoning was found again.
    `missed`: those that were stored, but not spliced, because they could not be distinguished from
    others or because it was not certain that there were no others.
    `unverified`: those of the missed turns without a known lookalike.
    """

    histories: int = 0
    crashes: int = 0
    turns: int = 0
    spliced: int = 0
    missed: int = 0
    unverified: int = 0
    wrong: int = 0

    def add(self, other: "Result") -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class FaultyStore(MemoryLedgerStore):
    """The access of one process to a store that it shares with others. Its process may die."""

    __slots__ = ("_disk", "_gate", "dead", "mode")

    def __init__(self, disk: MemoryLedgerStore) -> None:
        super().__init__()
        self._disk = disk
        self._gate = asyncio.Event()
        self.mode: Mode = "ok"
        self.dead = False

    def set_mode(self, mode: Mode) -> None:
        self.mode = mode
        if mode == "ok":
            self._gate.set()
        else:
            self._gate.clear()

    async def get(self, tenant: str, id: str) -> LedgerEntry | None:
        return await self._read(lambda: self._disk.get(tenant, id))

    async def find_by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        return await self._read(lambda: self._disk.find_by_call(tenant, call_key))

    async def find_by_chain(self, tenant: str, chain: bytes, chain_before: bytes) -> ChainLookup:
        return await self._read(lambda: self._disk.find_by_chain(tenant, chain, chain_before))

    async def open_turn(self, turn: OpenTurn) -> None:
        if self.mode == "lag":
            raise TimeoutError
        await self._write(lambda: self._disk.open_turn(turn))

    async def close_turn(self, turn: OpenTurn) -> None:
        await self._write(lambda: self._disk.close_turn(turn))

    async def put(self, entry: LedgerEntry) -> None:
        if self.mode == "lag":
            await self._gate.wait()
        await self._write(lambda: self._disk.put(entry))

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        await self._write(lambda: self._disk.touch(tenant, list(ids)))

    async def version(self) -> int | None:
        return None

    @property
    def gap_at(self) -> float:
        return self._disk.gap_at

    async def record_gap(self, turn: OpenTurn, reason: str) -> None:
        await self._disk.record_gap(turn, reason)

    async def _read(self, operation: Callable[[], Awaitable[T]]) -> T:
        if self.dead or self.mode != "ok":
            raise StoreError("no response")
        return await operation()

    async def _write(self, operation: Callable[[], Awaitable[None]]) -> None:
        if self.dead or self.mode == "refuse":
            raise StoreError("refused")
        await operation()
        if self.mode == "lose_response":
            raise StoreError("no response")


@dataclass
class Conversation:
    """What a client knows of its conversation. `own`: the numbers of its reasoning."""

    session: str | None
    started: float
    turns: list[Turn] = field(default_factory=list)
    numbers: list[int | None] = field(default_factory=list)  # per assistant turn
    own: set[int] = field(default_factory=set)


class Process:
    """A server process: its memory is lost in a crash."""

    def __init__(self, disk: MemoryLedgerStore, cache_bytes: int) -> None:
        self.store = FaultyStore(disk)
        self.ledger = Ledger(self.store, shared=True, cache_bytes=cache_bytes)
        self.ledger.write_timeout_seconds = 0.0005
        self.ledger._backlog_bytes = 1 << 20  # not so small that a slow store stops everything
        self.preparer = ChatPreparer(small_model(), self.ledger, KEYS)

    async def end(self) -> None:
        """Die: what has not reached the store never will."""
        self.store.dead = True
        self.store.set_mode("ok")
        await self.ledger.flush()


class History:
    """One history: some conversations, two processes, one store."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._now = 1e9
        self._disk = MemoryLedgerStore(max_age=MAX_AGE, clock=lambda: self._now)
        self._cache_bytes = self._dice.choice((1, 1 << 20))
        self._processes = [self._start() for _ in range(self._dice.choice((1, 2)))]
        self._conversations: list[Conversation] = []
        self._number = 0
        self.result = Result(histories=1)

    def _start(self) -> Process:
        return Process(self._disk, self._cache_bytes)

    async def run(self) -> Result:
        for _ in range(STEPS):
            self._disturb()
            await self._take_turn(self._choose())
        for process in self._processes:
            await process.end()
        return self.result

    def _disturb(self) -> None:
        dice = self._dice
        for process in self._processes:
            if dice.random() < 0.2:
                process.store.set_mode(dice.choice(MODES))
        if dice.random() < 0.05:
            self._now += MAX_AGE * 0.6
        # A client that is away for so long that the gaps of its time have expired is not covered.
        self._conversations = [
            one for one in self._conversations if self._now - one.started < MAX_AGE
        ]

    def _choose(self) -> Conversation:
        dice = self._dice
        known = [one for one in self._conversations if len(one.numbers) < MAX_TURNS]
        if known and dice.random() < 0.7:
            return dice.choice(known)
        session = f"s{self._number}" if dice.random() < 0.3 else None
        made = Conversation(session, self._now)
        self._conversations.append(made)
        return made

    async def _take_turn(self, conversation: Conversation) -> None:
        dice, at = self._dice, self._dice.randrange(len(self._processes))
        process = self._processes[at]
        question = user(dice.choice(USERS))
        request = Request(
            "m",
            (*conversation.turns, question),
            (TextBlock("Be brief."),),
            tools=(RUN,),
            identity=Identity(session=conversation.session),
        )
        prepared = await process.preparer.prepare(request)
        await self._check(conversation, prepared)
        number, seen, crashed = await self._generate(process, prepared)
        if crashed:
            self.result.crashes += 1
            await process.end()
            self._processes[at] = self._start()
        conversation.own.add(number)
        if seen:
            reply = Turn("assistant", (TextBlock(seen),))
            conversation.turns += [question, reply]
            conversation.numbers.append(number)

    async def _generate(self, process: Process, prepared: PreparedRequest) -> tuple[int, str, bool]:
        """Generate a turn. Returns its number, the text that the client saw, and if it crashed."""
        dice, preparer = self._dice, process.preparer
        self._number += 1
        number, text, point = self._number, dice.choice(TEXTS), dice.choice(CRASH_POINTS)
        generation = preparer.create_generation(prepared, lambda: "call_0")
        if point == "before_open":
            return number, "", True
        await preparer.open_turn(prepared, generation)
        if point == "after_open":
            return number, "", True
        tokenizer = small_model().tokenizer
        ids = tokenizer.encode(reasoning_text(f"reason{number}.") + text)
        if point == "after_first_event" or dice.random() < 0.1:  # a crash, or a disconnect
            generation.feed(ids)
            if point != "after_first_event":
                await preparer.record(prepared, generation)
            return number, dice.choice(("ok", text, "")), point == "after_first_event"
        generation.feed([*ids, min(small_model().stop_ids)])
        generation.finish()
        if point == "before_commit":
            return number, text, True
        if dice.random() < 0.05:  # its ids are not exact: it is never recorded
            return number, text, False
        await preparer.record(prepared, generation)
        return number, text, point == "after_commit"

    async def _check(self, conversation: Conversation, prepared: PreparedRequest) -> None:
        prompt = small_model().tokenizer.decode(prepared.prompt.ids)
        found = {int(number) for number in _REASONING.findall(prompt)}
        if not found <= conversation.own:
            raise WrongSplice(f"reasoning {found - conversation.own} of another conversation")
        notes = prepared.prompt.notes
        self.result.turns += len(conversation.numbers)
        self.result.spliced += len(found)
        self.result.missed += sum(note in ("ambiguous_turn", "unverified_turn") for note in notes)
        self.result.unverified += sum(note == "unverified_turn" for note in notes)


async def run_history(seed: int) -> Result:
    """Run the history of one seed."""
    return await History(seed).run()


def run(histories: int, seed: int) -> Result:
    """Run histories with the seeds from `seed` on. Wrong splices are counted and printed."""

    async def main() -> Result:
        total = Result()
        for number in range(seed, seed + histories):
            try:
                total.add(await run_history(number))
            except WrongSplice as error:
                print(f"history {number}: {error}")
                total.add(Result(histories=1, wrong=1))
        return total

    return asyncio.run(main())
