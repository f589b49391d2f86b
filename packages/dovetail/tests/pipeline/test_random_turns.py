"""Turns of random tokens through the pipeline: ids, frames, a client, and the next prompt.

The long run is `tools/fuzz_turns.py`.
"""

import asyncio

import pytest
from agent_clients import AGENTS, Agent, ClaudeCode, Codex, MessagesAgent, PlainChat
from random_output import Tally, check_claims, check_raw, run_random_session
from real_models import PAIRS, Pair, available, model, require
from scripted_run import ScriptedRunner

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.prompt.turn_writer import TurnWriter

SEEDS = {agent: 100 + at for at, agent in enumerate(AGENTS)}
EDGES = [pair for pair in PAIRS if pair.name in ("Qwen3-Coder", "Ministral-3", "gpt-oss")]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_random_output_is_replayed_exactly(pair: Pair) -> None:
    require(pair)
    tally = Tally()
    for agent, seed in SEEDS.items():
        asyncio.run(run_random_session(pair, agent, seed, 4, tally))
    assert tally.turns == 4 * len(AGENTS)
    assert tally.missed == 0


def test_turns_of_reasoning_without_text() -> None:
    """OpenCode drops truncated calls and reasoning text, so the turn has no visible content."""
    pair = next(pair for pair in PAIRS if pair.name == "Ministral-3")
    require(pair)
    opencode = next(agent for agent in AGENTS if agent.name == "opencode")
    asyncio.run(run_random_session(pair, opencode, 2, 8, Tally()))


def _edges(pair: Pair) -> dict[str, list[int]]:
    """Yield ends of output that are error-prone."""
    tokenizer = model(pair).tokenizer
    stop = min(model(pair).stop_ids)
    text = tokenizer.encode_plain("Sure: ")
    parrot = tokenizer.encode_plain("🦜")
    control = next(id for id in tokenizer.controls.values() if id not in model(pair).stop_ids)
    return {
        "nothing at all": [],
        "the end at once": [stop],
        "the end twice": [*text, stop, stop],
        "text behind the end": [*text, stop, *text],
        "white space": [*tokenizer.encode_plain(" \n\n "), stop],
        "no end": text,
        "half a character": [*text, *parrot[:1]],
        "half a character, then the end": [*text, *parrot[:1], stop],
        "half a character inside": [*text, *parrot[:1], *text, stop],
        "half a character before a control token": [*text, *parrot[:1], control, *text, stop],
        "a control token first": [control, *text, stop],
        "a control token last": [*text, control, stop],
        "an angle bracket": [*tokenizer.encode_plain("<"), stop],
    }


@pytest.mark.parametrize("agent", [MessagesAgent, ClaudeCode, Codex, PlainChat])
@pytest.mark.parametrize("edge", _edges(available()[0]) if available() else ["none at hand"])
@pytest.mark.parametrize("pair", EDGES, ids=lambda pair: pair.name)
def test_unusual_ends_of_output(pair: Pair, edge: str, agent: type[Agent]) -> None:
    require(pair)
    asyncio.run(_run_and_continue(pair, _edges(pair)[edge], agent()))


async def _run_and_continue(pair: Pair, ids: list[int], agent: Agent) -> None:
    loaded = model(pair)
    preparer = ChatPreparer(loaded, Ledger(MemoryLedgerStore()), Keyring([b"e" * 32]))
    writer = TurnWriter(loaded.tool_parser, loaded.reasoning_parser)
    runner = ScriptedRunner(preparer, loaded.tokenizer, min(loaded.stop_ids), writer)
    agent.add_user_message("Hello?")
    turn = await runner.run_tokens(agent, await runner.prepare(agent), ids, step=1)
    check_raw(loaded, turn)
    agent.add_user_message("Go on.")
    prepared = await runner.prepare(agent)
    check_claims(prepared, {turn.generation.build_entry().id: turn})
    assert "Go on." in loaded.tokenizer.decode(prepared.prompt.ids)
