"""Exactness when the world changes in the middle of a session.

The system text and the tools change, the server restarts, its store is lost, its key is lost. What
can be kept is kept, token for token; nothing ever breaks.
"""

import asyncio
from array import array
from collections.abc import Callable, Coroutine
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import ParamSpec

import pytest
from agent_clients import SYSTEM, Agent, ChatAgent, ClaudeCode, Codex, MessagesAgent, OpenCode
from exactness_matrix import KEY, OFF, Session, ask, player, policy_for, preparer, turn
from real_models import PAIRS, Pair, model, require
from scripted_run import Played, Player
from session_script import SCRIPT

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.pipeline.preparation import ChatPreparer

EVERY_PAIR = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
AGENT = pytest.mark.parametrize("kind", [ClaudeCode, Codex, ChatAgent], ids=lambda k: k.name)
SEALED = pytest.mark.parametrize(
    "kind", [MessagesAgent, ClaudeCode, Codex, OpenCode], ids=lambda k: k.name
)
THINKING = pytest.mark.parametrize(
    "pair", [p for p in PAIRS if p.reasoning_parser != "none"], ids=lambda pair: pair.name
)
P = ParamSpec("P")
MIDDLE = 10  # turns before the change: in the middle of the last loop


def in_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """A test that awaits."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@EVERY_PAIR
@AGENT
@pytest.mark.parametrize("change", ["a tool in the middle of the list", "another git status"])
@in_a_loop
async def test_known_turns_stand_under_another_head(
    pair: Pair, kind: type[Agent], change: str
) -> None:
    session, play, agent = await _begun(pair, kind)
    if change == "another git status":
        agent.restate(SYSTEM + "\n\ngitStatus: M a.py\nM b.py")
    else:
        (first, schema), *rest = agent.tools.items()
        agent.tools = {first: schema, "look_up": {"type": "object", "properties": {}}, **dict(rest)}
    changed = await turn(session, play, agent)
    assert changed.prepared.prompt.origin == "iterated"
    assert _found_in_order(changed, _kept_zone(session, kind)) == []
    after = await turn(session, play, agent)
    assert after.prepared.prompt.origin == "grown"
    assert _begins_with(after, changed)


@EVERY_PAIR
@pytest.mark.parametrize("kind", [ClaudeCode, ChatAgent], ids=lambda k: k.name)
@in_a_loop
async def test_a_session_goes_on_after_a_restart(
    pair: Pair, kind: type[Agent], tmp_path: Path
) -> None:
    require(pair)
    ledger = Ledger(SqliteLedgerStore(tmp_path / "ledger.db"))
    session, _, agent = await _begun(pair, kind, ChatPreparer(model(pair), ledger, KEY))
    await ledger.close()
    again = Ledger(SqliteLedgerStore(tmp_path / "ledger.db"))
    play = player(pair, ChatPreparer(model(pair), again, KEY))
    for _ in range(MIDDLE, len(SCRIPT)):
        before = session.played[-1]
        played = await turn(session, play, agent)
        assert played.prepared.prompt.origin == "grown"
        assert _begins_with(played, before)
    await again.close()


@THINKING
@SEALED
@in_a_loop
async def test_turns_come_back_from_seals_when_the_store_is_lost(
    pair: Pair, kind: type[Agent]
) -> None:
    session, _, agent = await _begun(pair, kind)
    prompt = (await player(pair, preparer(pair)).prepare(agent)).prompt
    assert prompt.origin == "iterated"
    wanted = _sealed(session, kind)
    assert len(wanted) > 1
    assert _missing(prompt.ids, wanted) == []


@THINKING
@in_a_loop
async def test_no_turn_ends_twice(pair: Pair) -> None:
    """Turns that are written in the model's notation, rebuilt from seals or from the client."""
    _, _, agent = await _begun(pair, ClaudeCode)
    controls = model(pair).tokenizer.controls
    ends = {controls[end] for end in (*model(pair).stop_strings, "<|end|>") if end in controls}
    for prepares in (preparer(pair), preparer(pair, OFF)):
        ids = (await player(pair, prepares).prepare(agent)).prompt.ids
        assert [one for one, next in pairwise(ids) if one in ends and next in ends] == []


@THINKING
@SEALED
@in_a_loop
async def test_without_the_key_seals_are_nothing(pair: Pair, kind: type[Agent]) -> None:
    session, _, agent = await _begun(pair, kind)
    other = ChatPreparer(
        model(pair), Ledger(MemoryLedgerStore()), Keyring([b"another" + bytes(25)])
    )
    prompt = (await player(pair, other).prepare(agent)).prompt
    cold = (await player(pair, preparer(pair, OFF)).prepare(agent)).prompt
    assert prompt.ids == cold.ids
    assert prompt.exact_turns == frozenset()
    assert any(note.startswith("seal_") for note in prompt.notes)
    assert (await turn(session, player(pair, other), agent)).prepared.prompt.ids == cold.ids


async def _begun(
    pair: Pair, kind: type[Agent], prepares: ChatPreparer | None = None
) -> tuple[Session, Player, Agent]:
    require(pair)
    session, agent = Session(pair), kind()
    play = player(pair, prepares or preparer(pair))
    ask(session, agent)
    for _ in range(MIDDLE):
        await turn(session, play, agent)
    return session, play, agent


def _begins_with(played: Played, before: Played) -> bool:
    return played.prepared.prompt.ids[: len(before.whole)] == before.whole


def _kept_zone(session: Session, kind: type[Agent]) -> list[Played]:
    """The turns that the model's policy keeps: all of them, or those of the running loop."""
    known = session.played[:MIDDLE]
    if policy_for(model(session.pair), kind) == "keeps":
        return known
    opened = max(at for at in session.questions if at < MIDDLE)
    return known[opened:]


def _found_in_order(played: Played, turns: list[Played]) -> list[int]:
    return _missing(played.prepared.prompt.ids, [turn.generation.ids for turn in turns])


def _sealed(session: Session, kind: type[Agent]) -> list["array[int]"]:
    """What seals hold: turns with a thought, whole where the next turn has one too."""
    turns = _kept_zone(session, kind)
    held: list[array[int]] = []
    for at, played in enumerate(turns):
        spans = played.generation.build_entry().spans
        thoughts = [span.tokens for span in spans if span.kind == "reasoning"]
        if not thoughts:
            continue
        following = turns[at + 1].generation.build_entry().spans if at + 1 < len(turns) else ()
        whole = any(span.kind == "reasoning" for span in following)
        ids = played.generation.ids
        held.append(ids if whole else ids[: thoughts[-1]])
    return held


def _missing(ids: "array[int]", turns: list["array[int]"]) -> list[int]:
    """The places of turns whose tokens do not stand in the ids, one behind the other."""
    text, missing, start = ids.tobytes(), [], 0
    for at, said in enumerate(turns):
        found = text.find(said.tobytes(), start)
        while found >= 0 and found % ids.itemsize:
            found = text.find(said.tobytes(), found + 1)
        if found < 0:
            missing.append(at)
        else:
            start = found + len(said) * ids.itemsize
    return missing
