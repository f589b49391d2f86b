"""Exactness after changes in the middle of a session.

The system text and the tools change, the server restarts, its store is lost, its key is lost. All
tokens that can be preserved are preserved, and no request fails.
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
from exactness_matrix import (
    KEY,
    OFF,
    Session,
    make_preparer,
    make_runner,
    policy_for,
    run_turn,
    send_question,
)
from real_models import PAIRS, Pair, model, require
from scripted_run import ScriptedRunner, ScriptedTurn
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
    """Run an async test in an event loop."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@EVERY_PAIR
@AGENT
@in_a_loop
async def test_known_turns_are_reused_under_another_head(pair: Pair, kind: type[Agent]) -> None:
    session, runner, agent = await _run_until_middle(pair, kind)
    agent.set_system(SYSTEM + "\n\ngitStatus: M a.py\nM b.py")
    changed = await run_turn(session, runner, agent)
    assert changed.prepared.prompt.origin == "iterated"
    assert _missing_turns(changed, _preserved_turns(session, kind)) == []
    after = await run_turn(session, runner, agent)
    assert after.prepared.prompt.origin == "grown"
    assert _begins_with(after, changed)


@EVERY_PAIR
@AGENT
@in_a_loop
async def test_tool_in_the_middle_of_the_list_does_not_change_the_head(
    pair: Pair, kind: type[Agent]
) -> None:
    session, runner, agent = await _run_until_middle(pair, kind)
    before = session.turns[-1]
    (first, schema), *rest = agent.tools.items()
    agent.tools = {first: schema, "look_up": {"type": "object", "properties": {}}, **dict(rest)}
    changed = await run_turn(session, runner, agent)
    assert changed.prepared.prompt.origin == "grown"
    assert _begins_with(changed, before)
    assert _begins_with(await run_turn(session, runner, agent), changed)


@EVERY_PAIR
@pytest.mark.parametrize("kind", [ClaudeCode, ChatAgent], ids=lambda k: k.name)
@in_a_loop
async def test_a_session_continues_after_a_restart(
    pair: Pair, kind: type[Agent], tmp_path: Path
) -> None:
    require(pair)
    ledger = Ledger(SqliteLedgerStore(tmp_path / "ledger.db"))
    session, _, agent = await _run_until_middle(pair, kind, ChatPreparer(model(pair), ledger, KEY))
    await ledger.close()
    again = Ledger(SqliteLedgerStore(tmp_path / "ledger.db"))
    runner = make_runner(pair, ChatPreparer(model(pair), again, KEY))
    for _ in range(MIDDLE, len(SCRIPT)):
        before = session.turns[-1]
        scripted_turn = await run_turn(session, runner, agent)
        assert scripted_turn.prepared.prompt.origin == "grown"
        assert _begins_with(scripted_turn, before)
    await again.close()


@THINKING
@SEALED
@in_a_loop
async def test_turns_are_restored_from_seals_if_the_store_is_lost(
    pair: Pair, kind: type[Agent]
) -> None:
    session, _, agent = await _run_until_middle(pair, kind)
    prompt = (await make_runner(pair, make_preparer(pair)).prepare(agent)).prompt
    assert prompt.origin == "iterated"
    wanted = _sealed_ids(session, kind)
    assert len(wanted) > 1
    assert _missing(prompt.ids, wanted) == []


@THINKING
@in_a_loop
async def test_no_turn_has_two_stop_tokens(pair: Pair) -> None:
    """Turns in the notation of the model, rebuilt from seals or from the client's copy."""
    _, _, agent = await _run_until_middle(pair, ClaudeCode)
    controls = model(pair).tokenizer.controls
    ends = {controls[end] for end in (*model(pair).stop_strings, "<|end|>") if end in controls}
    for preparer in (make_preparer(pair), make_preparer(pair, OFF)):
        ids = (await make_runner(pair, preparer).prepare(agent)).prompt.ids
        assert [one for one, next in pairwise(ids) if one in ends and next in ends] == []


@THINKING
@SEALED
@in_a_loop
async def test_seals_are_ignored_without_their_key(pair: Pair, kind: type[Agent]) -> None:
    session, _, agent = await _run_until_middle(pair, kind)
    other = ChatPreparer(
        model(pair), Ledger(MemoryLedgerStore()), Keyring([b"another" + bytes(25)])
    )
    prompt = (await make_runner(pair, other).prepare(agent)).prompt
    cold = (await make_runner(pair, make_preparer(pair, OFF)).prepare(agent)).prompt
    assert prompt.ids == cold.ids
    assert prompt.exact_turns == frozenset()
    assert any(note.startswith("seal_") for note in prompt.notes)
    assert (
        await run_turn(session, make_runner(pair, other), agent)
    ).prepared.prompt.ids == cold.ids


async def _run_until_middle(
    pair: Pair, kind: type[Agent], preparer: ChatPreparer | None = None
) -> tuple[Session, ScriptedRunner, Agent]:
    require(pair)
    session, agent = Session(pair), kind()
    runner = make_runner(pair, preparer or make_preparer(pair))
    send_question(session, agent)
    for _ in range(MIDDLE):
        await run_turn(session, runner, agent)
    return session, runner, agent


def _begins_with(after: ScriptedTurn, before: ScriptedTurn) -> bool:
    return after.prepared.prompt.ids[: len(before.token_ids)] == before.token_ids


def _preserved_turns(session: Session, kind: type[Agent]) -> list[ScriptedTurn]:
    """Return the turns that the policy of the model preserves: all, or the running loop."""
    known = session.turns[:MIDDLE]
    if policy_for(model(session.pair), kind) == "keeps":
        return known
    opened = max(at for at in session.questions if at < MIDDLE)
    return known[opened:]


def _missing_turns(scripted_turn: ScriptedTurn, turns: list[ScriptedTurn]) -> list[int]:
    return _missing(scripted_turn.prepared.prompt.ids, [turn.generation.ids for turn in turns])


def _sealed_ids(session: Session, kind: type[Agent]) -> list["array[int]"]:
    """Return the sealed turns: those with reasoning, complete if the next turn has some too."""
    turns = _preserved_turns(session, kind)
    held: list[array[int]] = []
    for at, scripted_turn in enumerate(turns):
        spans = scripted_turn.generation.build_entry().spans
        reasoning_ends = [span.tokens for span in spans if span.kind == "reasoning"]
        if not reasoning_ends:
            continue
        following = turns[at + 1].generation.build_entry().spans if at + 1 < len(turns) else ()
        whole = any(span.kind == "reasoning" for span in following)
        ids = scripted_turn.generation.ids
        held.append(ids if whole else ids[: reasoning_ends[-1]])
    return held


def _missing(ids: "array[int]", turns: list["array[int]"]) -> list[int]:
    """Return the indexes of turns whose tokens do not occur in the ids, in order."""
    text, missing, start = ids.tobytes(), [], 0
    for at, turn_ids in enumerate(turns):
        found = text.find(turn_ids.tobytes(), start)
        while found >= 0 and found % ids.itemsize:
            found = text.find(turn_ids.tobytes(), found + 1)
        if found < 0:
            missing.append(at)
        else:
            start = found + len(turn_ids) * ids.itemsize
    return missing
