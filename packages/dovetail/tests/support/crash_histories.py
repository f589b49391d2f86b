"""Histories of visibly equal conversations on servers that crash and stores that fail.

Every turn has reasoning of its own, which its client drops; the visible texts are few, so that many
conversations look the same. Processes crash at every step of a turn; stores refuse operations,
delay them, execute them without a response, freeze, and lose data; entries expire and are evicted.
No turn of a prompt may have reasoning of another turn. Everything runs in simulated time.

`run` is the entry point; a failure names the seed of its history.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args
from unittest.mock import patch

from fake_clock_loop import run_jumping
from forked_histories import user
from history_profiles import STRESS, Profile
from simulated_process import Process
from simulated_redis import Link, LinkMode
from simulated_stores import (
    Storage,
    StoreKind,
    loop_time,
    simulated_stores,
    wall_time,
)
from simulated_turns import ServedTurn, shared_renderers
from splice_costs import Fate, Result, Rule, find_cause, lookups, observed_lookups

from dovetail.pipeline import rendering
from dovetail_model import Identity, Request, TextBlock, Turn

CrashPoint = Literal[
    "before_open",
    "after_open",
    "after_first_event",
    "before_commit",
    "after_commit",
    "any_time",
]
FAULTS: tuple[LinkMode, ...] = ("refuse", "lose_response", "lag")


class _Crash(Exception):
    """The process of the current turn crashes."""


@dataclass
class Conversation:
    """What a client knows of its conversation. `numbers`: of the reasoning of each response."""

    session: str | None
    started: float
    turns: list[Turn] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    question: Turn | None = None  # to be sent again


@dataclass
class Reply:
    """A response as its client receives it."""

    number: int
    text: str
    seen: str = ""
    finished: bool = False


class History:
    """One history: some conversations, one or two processes, one store."""

    def __init__(self, seed: int, kind: StoreKind, profile: Profile) -> None:
        self._dice = random.Random(seed)
        self._profile = profile = profile.choose(self._dice)
        self._storage = Storage(kind, self._dice.choice(profile.store_bytes), profile.max_age)
        self._processes: list[Process] = []
        self._lost_places: set[str] = set()
        self._starting: dict[asyncio.Task[None], None] = {}
        for place in range(self._dice.choice((1, 2))):
            self._start(f"{place}")
        self._left = profile.turns
        self._number = 0
        self._fates: dict[str, Fate] = {}
        self._numbers: dict[str, int] = {}  # by entry id
        self._sessions: dict[int, str | None] = {}  # by number
        self.result = Result(histories=1)

    async def run(self) -> Result:
        disturbance = asyncio.create_task(self._disturb())
        try:
            clients = [
                self._client(random.Random(self._dice.random()))
                for _ in range(self._profile.clients)
            ]
            await asyncio.gather(*clients)
        finally:
            for task in (disturbance, *self._starting):
                task.cancel()
            await asyncio.sleep(0)
            for process in self._processes:
                process.kill()
            self._storage.remove()
        return self.result

    # ---- failures ----

    def _start(self, place: str) -> None:
        link = Link(random.Random(self._dice.random()))
        process = Process(self._storage, place, link, self._profile)
        task = asyncio.create_task(self._await_start(process))
        self._starting[task] = None
        task.add_done_callback(lambda task: self._starting.pop(task, None))

    async def _await_start(self, process: Process) -> None:
        """Add a process when it has reached its store. Others do not know of it before."""
        try:
            await process.ledger.start()
            while not process.has_reached_store:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            self._lost_places.discard(process.place)
            self._processes.append(process)
        except asyncio.CancelledError:
            process.kill()

    def _crash(self, process: Process) -> None:
        if process.link.dead:
            return
        self.result.crashes += 1
        process.kill()
        self._processes.remove(process)
        place = process.place
        if self._dice.random() < self._profile.lost_folder and process.knows_server:
            self._storage.lose_folder(place)
            self._lost_places.add(place)
        if self._processes and self._dice.random() < self._profile.abandoned:
            return  # it is not started again
        asyncio.get_running_loop().call_later(self._dice.random() * 3, self._start, place)

    async def _disturb(self) -> None:
        """Let the store fail from time to time."""
        dice, profile = self._dice, self._profile
        while True:
            await asyncio.sleep(dice.expovariate(1 / profile.fault_interval))
            seconds = dice.random() * profile.fault_seconds
            if self._storage.kind == "redis" and dice.random() < 0.25:
                self._disturb_server(seconds)
            elif self._processes:
                link = dice.choice(self._processes).link
                link.mode = dice.choice(FAULTS)
                asyncio.get_running_loop().call_later(seconds, setattr, link, "mode", "ok")

    def _disturb_server(self, seconds: float) -> None:
        server, kind, loss = self._storage.server, self._dice.random(), self._profile.data_loss
        if kind < 1 - loss:
            server.frozen_until = loop_time() + seconds
        elif kind < 1 - loss / 2:
            if not self._lost_places:  # if both lose their data, nothing shows the gap
                server.restart()
        else:
            server.evict(self._dice)

    # ---- clients ----

    async def _client(self, dice: random.Random) -> None:
        conversations: list[Conversation] = []
        while self._left > 0:
            self._left -= 1
            away = self._profile.max_age * 0.6 if dice.random() < self._profile.away else 0.0
            await asyncio.sleep(dice.random() * 2 * self._profile.pace + away)
            # A client that is away for so long that the gaps of its time have expired is not
            # covered.
            conversations = [
                one for one in conversations if wall_time() - one.started < self._profile.max_age
            ]
            conversation = self._choose(dice, conversations)
            reply = await self._send_request(dice, conversation)
            self._continue(dice, conversation, reply, conversations)

    def _choose(self, dice: random.Random, conversations: list[Conversation]) -> Conversation:
        known = [
            one for one in conversations if len(one.numbers) < self._profile.conversation_turns
        ]
        if known and dice.random() < 0.7:
            return dice.choice(known)
        named = dice.random() < self._profile.named_session
        made = Conversation(f"s{dice.random()}" if named else None, wall_time())
        conversations.append(made)
        return made

    def _text(self, dice: random.Random, texts: tuple[str, ...]) -> str:
        alike = dice.random() < self._profile.alike
        return dice.choice(texts) if alike else f"{dice.choice(texts)} {dice.random()}"

    def _continue(
        self,
        dice: random.Random,
        conversation: Conversation,
        reply: Reply,
        conversations: list[Conversation],
    ) -> None:
        """Do what clients do with a response: keep, discard or repeat it, or branch."""
        question, conversation.question = conversation.question, None
        assert question is not None
        if not reply.seen or (not reply.finished and dice.random() < 0.5):
            conversation.question = question if dice.random() < 0.7 else None
            return
        if dice.random() < self._profile.fork:
            conversations.append(
                Conversation(
                    conversation.session,
                    conversation.started,
                    list(conversation.turns),
                    list(conversation.numbers),
                    question,
                )
            )
        if dice.random() < self._profile.regenerate:
            conversation.question = question
            return
        conversation.turns += [question, Turn("assistant", (TextBlock(reply.seen),))]
        conversation.numbers.append(reply.number)

    async def _send_request(self, dice: random.Random, conversation: Conversation) -> Reply:
        conversation.question = conversation.question or user(self._text(dice, ("hi", "more")))
        self._number += 1
        reply = Reply(self._number, self._text(dice, ("ok", "ok then", "no")))
        self._sessions[reply.number] = conversation.session
        while not self._processes:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        process = dice.choice(self._processes)
        turn = process.add_turn(self._serve(dice, process, conversation, reply))
        try:
            await turn
        except asyncio.CancelledError:
            if not process.link.dead:
                raise
        except _Crash:
            self._crash(process)
        return reply

    # ---- the server ----

    async def _serve(
        self, dice: random.Random, process: Process, conversation: Conversation, reply: Reply
    ) -> None:
        assert conversation.question is not None
        request = Request(
            "m",
            (*conversation.turns, conversation.question),
            identity=Identity(session=conversation.session),
        )
        lookups.set({})
        turn = await process.server.prepare(request, reply.number)
        self._check(conversation, turn)
        self._numbers[turn.entry_id] = reply.number
        self._fates[turn.entry_id] = "open"
        fate: Fate = "crashed"
        try:
            fate = await self._generate(dice, process, turn, reply)
        finally:
            self._fates[turn.entry_id] = fate

    async def _generate(
        self, dice: random.Random, process: Process, turn: ServedTurn, reply: Reply
    ) -> Fate:
        """Generate a turn as the pipeline does, with a crash at any of its steps."""
        reached = self._crash_at(dice, process)
        reached("before_open")
        await turn.open()
        reached("after_open")
        reply.seen = _begin(dice, reply.text)
        turn.generate(reply.seen)
        reached("after_first_event")
        await asyncio.sleep(dice.random() * 2 * self._profile.pace)
        rest = reply.text[len(reply.seen) :]
        if dice.random() < self._profile.disconnect:
            turn.generate(rest)
            reply.seen = _begin(dice, reply.text)  # less than was generated
            # The client is gone: it may repeat the request before the turn is recorded.
            process.add_turn(turn.record())
            return "interrupted"
        turn.generate(rest, finish=True)
        reply.seen = reply.text  # all but the last event
        reached("before_commit")
        if dice.random() < self._profile.unrecorded:  # its ids are not exact
            reply.finished = True
            return "unrecorded"
        await turn.record()
        reached("after_commit")
        reply.finished = True
        return "stored"

    def _crash_at(self, dice: random.Random, process: Process) -> Callable[[CrashPoint], None]:
        """Return a function that crashes if the turn has reached the point of its crash."""
        point = None
        if dice.random() < self._profile.crash:
            point = dice.choice(get_args(CrashPoint))
        if point == "any_time":
            seconds = dice.random() * 4
            asyncio.get_running_loop().call_later(seconds, self._crash, process)

        def reached(current: CrashPoint) -> None:
            if current == point:
                raise _Crash

        return reached

    def _check(self, conversation: Conversation, turn: ServedTurn) -> None:
        """Compare the reasoning in the prompt with that of the turns."""
        result, matches = self.result, lookups.get()
        turns = zip(conversation.numbers, turn.spliced, turn.chains, strict=True)
        for number, spliced, chain in turns:
            match = matches.get(chain)
            earlier = spliced if match is None else self._numbers[match.earlier]
            result.turns += 1
            result.right += spliced == number
            if spliced not in (None, number):
                self._count_wrong(conversation, number, spliced)
            result.earlier_right += earlier == number
            result.earlier_wrong += earlier not in (None, number)
            if earlier == number and spliced is None and match is not None:
                result.add_missed(
                    find_cause(match.found, self._fates, has_gap=self._storage.has_gap)
                )

    def _count_wrong(self, conversation: Conversation, number: int, spliced: int) -> None:
        session = conversation.session
        if session is not None and self._sessions[spliced] == session:
            self.result.other_branch += 1
            return
        self.result.wrong += 1
        self.result.failures.append(f"turn {number} has the reasoning of turn {spliced}")


def _begin(dice: random.Random, text: str) -> str:
    """Return a number of words from the beginning of a text."""
    words = text.split(" ")
    return " ".join(words[: dice.randint(0, len(words))])


def run_history(
    seed: int,
    kind: StoreKind | None = None,
    profile: Profile = STRESS,
    rule: Rule = "current",
) -> Result:
    """Run the history of one seed. The store alternates if `kind` is None."""
    kinds: tuple[StoreKind, ...] = get_args(StoreKind)
    chosen = kind or kinds[seed % len(kinds)]

    async def main() -> Result:
        return await History(seed, chosen, profile).run()

    renderers = patch.object(rendering, "RendererCache", lambda model: shared_renderers())
    stores = simulated_stores(profile.abandoned_seconds)
    with stores, observed_lookups(rule), renderers:
        return run_jumping(main())


def run(
    histories: int,
    seed: int,
    kind: StoreKind | None = None,
    profile: Profile = STRESS,
    rule: Rule = "current",
) -> Result:
    """Run histories with the seeds from `seed` on, and print those with wrong splices."""
    total = Result()
    for number in range(seed, seed + histories):
        result = run_history(number, kind, profile, rule)
        total.add(result)
        if rule == "current" and result.failures:
            print(f"history {number}: {result.failures[0]}", flush=True)
    return total
