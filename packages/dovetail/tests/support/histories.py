"""Histories as clients may send them: replayed, edited, forked, merged."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
from forked_histories import (
    RUN,
    Cluster,
    GeneratedTurn,
    changed,
    make_cluster,
    map_calls,
    map_reasoning,
    user,
    without_reasoning,
    without_reasoning_text,
)
from splice_oracle import Oracle, text_of

from dovetail.pipeline.preparation import PreparedRequest
from dovetail_model import (
    Block,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

replace = msgspec.structs.replace
TENANTS = ("ann", "bob")
USERS = ("hi", "more", "again")
TEXTS = ("ok", "done", "ok")
REASONINGS = ("first", "second", "third")
ARGUMENTS = ('{"command": "ls"}', '{"command": "ls", "count": 2}', '{"command": "pwd"}')
RESULTS = ("fine", "bad", "")
_REASONING = re.compile(r"<think>\n.*?\n</think>\n\n", re.S)


# ---- generated turns ----------------------------------------------------------------------------


async def grow(cluster: Cluster, dice: random.Random) -> None:
    """Generate one more turn in a cluster whose branches are hard to distinguish.

    Texts, reasoning and arguments are few, and many turns repeat an earlier one: the same visible
    text after other reasoning. Some clients keep no handles.
    """
    replica = dice.randrange(len(cluster.preparers))
    if cluster.generated and dice.random() < 0.5:
        known = dice.choice(cluster.generated)
        text = _REASONING.sub(lambda _: _reasoning(dice), text_of(known.ids))
        await cluster.generate(known.parent, known.new_turns, text, known.tenant, replica)
        return
    tenant = dice.choice(TENANTS)
    own = [generated for generated in cluster.generated if generated.tenant == tenant]
    parent = dice.choice(own) if own and dice.random() < 0.8 else None
    plain = dice.random() < 0.3
    await cluster.generate(
        parent, _next_turns(parent, dice), _output(dice), tenant, replica, plain=plain
    )


def _next_turns(parent: GeneratedTurn | None, dice: random.Random) -> list[Turn]:
    if parent is None or not parent.calls:
        return [user(dice.choice(USERS))]
    blocks = tuple(
        ToolResultBlock(call.id, (TextBlock(dice.choice(RESULTS)),)) for call in parent.calls
    )
    return [Turn("tool", blocks)]


def _output(dice: random.Random) -> str:
    """A turn as the model writes it: reasoning, text, calls."""
    text = ""
    if dice.random() < 0.8:
        text += _reasoning(dice)
    if dice.random() < 0.6:
        text += dice.choice(TEXTS)
    for _ in range(dice.randrange(3)):
        if dice.random() < 0.3:
            text += _reasoning(dice)
        given = dice.choice(ARGUMENTS)
        text += f'<tool_call>\n{{"name": "run", "arguments": {given}}}\n</tool_call>'
    return text if text.endswith(("ok", "done", "</tool_call>")) else f"{text}ok"


def _reasoning(dice: random.Random) -> str:
    return f"<think>\n{dice.choice(REASONINGS)}\n</think>\n\n"


# ---- what a client sends back ------------------------------------------------------------------


class Client:
    """Derives histories from a tenant's branches: replayed, edited, forked, merged."""

    def __init__(self, cluster: Cluster, dice: random.Random) -> None:
        self._cluster = cluster
        self._dice = dice
        self._fresh = 0

    def history(self) -> tuple[str, list[Turn]]:
        """Return a tenant and turns that it may send."""
        dice = self._dice
        last = dice.choice(self._cluster.generated)
        turns = list(last.history)
        if dice.random() < 0.2:
            turns = self._merged(turns, last.tenant)
        if dice.random() < 0.5:
            habit = dice.choice(self._habits())
            turns = [habit(turn) if turn.role == "assistant" else turn for turn in turns]
        for _ in range(dice.choice((0, 0, 1, 1, 2, 4))):
            at = dice.randrange(len(turns))
            edits = self._edits() if turns[at].role == "assistant" else self._other_edits()
            turns[at] = dice.choice(edits)(turns[at])
        if dice.random() < 0.1:
            turns = turns[: dice.randrange(len(turns)) + 1]
        if dice.random() < 0.1:
            del turns[dice.randrange(len(turns))]
        tenant = last.tenant if dice.random() < 0.9 else dice.choice(TENANTS)
        return tenant, [*turns, *self._next(turns)]

    def _next(self, turns: Sequence[Turn]) -> list[Turn]:
        ids = [b.id for b in turns[-1].blocks if isinstance(b, ToolCallBlock)] if turns else []
        if not ids or self._dice.random() < 0.2:
            return [user(self._dice.choice(USERS))]
        return [Turn("tool", tuple(ToolResultBlock(id, (TextBlock("so"),)) for id in ids))]

    def _merged(self, turns: list[Turn], tenant: str) -> list[Turn]:
        """Join the beginning of one branch and the end of another."""
        other = self._dice.choice(
            [generated for generated in self._cluster.generated if generated.tenant == tenant]
        )
        index = self._dice.randrange(len(turns) + 1)
        return turns[:index] + list(other.history[self._dice.choice((index, 0)) :]) or turns

    def _habits(self) -> list[Callable[[Turn], Turn]]:
        return [
            without_reasoning,
            without_reasoning_text,
            self._new_ids,
            self._shortened_ids,
            self._other_form,
            lambda turn: self._new_ids(without_reasoning(turn)),
        ]

    def _edits(self) -> list[Callable[[Turn], Turn]]:
        return [
            *self._habits(),
            self._other_words,
            self._other_reasoning,
            self._other_arguments,
            self._without_call,
            self._other_turn,
            self._other_seal,
            self._other_ids,
            self._forged,
            self._truncated,
        ]

    def _other_edits(self) -> list[Callable[[Turn], Turn]]:
        """Edits of what a user or a tool sent."""
        return [self._other_words, self._other_space, self._moved_result]

    def _other_space(self, turn: Turn) -> Turn:
        before, after = self._dice.choice((("", "\n"), ("  ", ""), ("\n", " ")))
        return map_texts(turn, lambda text: f"{before}{text}{after}")

    def _moved_result(self, turn: Turn) -> Turn:
        """A result that refers to another call, of this history or of none."""
        ids = [call.id for call in self._dice.choice(self._cluster.generated).calls]
        others = [b.call_id for b in turn.blocks if isinstance(b, ToolResultBlock)]
        id = self._dice.choice([*ids, *others, "unknown"])
        gone = self._dice.randrange(2)
        blocks = [
            replace(b, call_id=id) if isinstance(b, ToolResultBlock) else b
            for b in turn.blocks[gone:] or turn.blocks
        ]
        return Turn(turn.role, tuple(blocks))

    def _new_ids(self, turn: Turn) -> Turn:
        self._fresh += 1
        return map_calls(turn, lambda b: replace(b, id=f"new_{self._fresh}_{b.id[-1:]}"))

    def _shortened_ids(self, turn: Turn) -> Turn:
        return map_calls(turn, lambda b: replace(b, id=b.id.replace("_", "")))

    def _other_form(self, turn: Turn) -> Turn:
        """The same arguments with another spelling and a default filled in."""
        return map_calls(turn, lambda b: replace(b, arguments=_respelled(b.arguments)))

    def _other_words(self, turn: Turn) -> Turn:
        text = self._dice.choice((*USERS, *TEXTS, "edited"))
        if turn.role == "tool":
            inner = (TextBlock(text),)
            return changed(
                turn, lambda b: replace(b, blocks=inner) if isinstance(b, ToolResultBlock) else b
            )
        return changed(turn, lambda b: TextBlock(text) if isinstance(b, TextBlock) else b)

    def _other_reasoning(self, turn: Turn) -> Turn:
        text = self._dice.choice((*REASONINGS, "edited"))
        return map_reasoning(turn, lambda b: replace(b, text=text))

    def _other_arguments(self, turn: Turn) -> Turn:
        given = self._dice.choice((*ARGUMENTS, '{"command": "rm -rf /"}'))
        return map_calls(turn, lambda b: replace(b, arguments=given))

    def _without_call(self, turn: Turn) -> Turn:
        calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
        gone = self._dice.choice(calls) if len(calls) > 1 else None
        return Turn(turn.role, tuple(b for b in turn.blocks if b is not gone))

    def _other_turn(self, turn: Turn) -> Turn:
        """A turn of another branch in this place."""
        return self._dice.choice(self._cluster.generated).turn

    def _other_seal(self, turn: Turn) -> Turn:
        """This turn with the seal of another turn, perhaps of another tenant."""
        seals = self._dice.choice(self._cluster.generated).seals
        return map_reasoning(turn, lambda b: replace(b, seal=seals[0])) if seals else turn

    def _other_ids(self, turn: Turn) -> Turn:
        ids = [call.id for call in self._dice.choice(self._cluster.generated).calls]
        return map_calls(turn, lambda b: replace(b, id=ids.pop(0)) if ids else b)

    def _forged(self, turn: Turn) -> Turn:
        at = self._dice.randrange(10, 80)
        return map_reasoning(turn, lambda b: replace(b, seal=_flipped(b.seal or "", at)))

    def _truncated(self, turn: Turn) -> Turn:
        size = self._dice.randrange(80)
        return map_reasoning(turn, lambda b: replace(b, seal=(b.seal or "")[:size]))


def map_texts(turn: Turn, change: Callable[[str], str]) -> Turn:
    """Change the texts of a turn, also those inside results."""

    def changed_block(block: Block) -> Block:
        match block:
            case TextBlock(text=text):
                return TextBlock(change(text))
            case ToolResultBlock(blocks=inner):
                texts = (
                    TextBlock(change(b.text)) if isinstance(b, TextBlock) else b for b in inner
                )
                return replace(block, blocks=tuple(texts))
        return block

    return changed(turn, changed_block)


def _respelled(arguments: str) -> str:
    given = {"background": False, **dict(reversed(json.loads(arguments).items()))}
    return json.dumps({k: float(v) if type(v) is int else v for k, v in given.items()})


def _flipped(seal: str, at: int) -> str:
    if len(seal) <= at:
        return seal
    return seal[:at] + ("A" if seal[at] != "A" else "B") + seal[at + 1 :]


@dataclass
class HistoryTally:
    """Counts over some histories."""

    histories: int = 0
    turns: int = 0
    exact: int = 0
    origins: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, prepared: PreparedRequest) -> None:
        self.histories += 1
        self.turns += sum(turn.role == "assistant" for turn in prepared.request.turns)
        self.exact += len(prepared.prompt.exact_turns)
        self.origins[prepared.prompt.origin] += 1
        self.notes.update(prepared.prompt.notes)


async def run_histories(
    dice: random.Random, count: int, replicas: int = 1, *, uncached: bool = False
) -> HistoryTally:
    """Check histories of one growing cluster, in which unique turns may become ambiguous."""
    cluster = make_cluster(replicas=replicas, uncached=uncached)
    oracle, client, tally = Oracle(cluster), Client(cluster, dice), HistoryTally()
    for at in range(count):
        if at < 12 or dice.random() < 0.05:
            await grow(cluster, dice)
        tenant, turns = client.history()
        replica = dice.randrange(replicas)
        session = dice.choice((None, "one", "two"))
        prepared = await cluster.prepare(turns, tenant, session, replica)
        tally.add(prepared)
        await oracle.check(prepared, replica)
    return tally


assert RUN.parameters["properties"]["background"]["default"] is False  # `_respelled` fills it in
