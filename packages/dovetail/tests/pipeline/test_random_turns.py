"""Turns of random tokens through the pipeline: ids, frames, a client, and the next prompt.

The long run is `tools/fuzz_turns.py`.
"""

import asyncio
from collections.abc import Callable

import pytest
from agent_clients import AGENTS, Agent, ClaudeCode, Codex, MessagesAgent, PlainChat
from random_output import Tally, check_claims, check_raw, run_random_session
from real_models import PAIRS, Pair, model, require
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


class _Pieces:
    """Token ids from which ends of output are put together."""

    def __init__(self, pair: Pair) -> None:
        loaded = model(pair)
        tokenizer = loaded.tokenizer
        self.stop = min(loaded.stop_ids)
        self.text = tokenizer.encode_plain("Sure: ")
        self.space = tokenizer.encode_plain(" \n\n ")
        self.bracket = tokenizer.encode_plain("<")
        self.half = tokenizer.encode_plain("🦜")[:1]  # of a character
        controls = tokenizer.controls.values()
        self.control = next(id for id in controls if id not in loaded.stop_ids)


#: Ends of output that are error-prone.
ENDS: dict[str, Callable[[_Pieces], list[int]]] = {
    "nothing at all": lambda of: [],
    "the end at once": lambda of: [of.stop],
    "the end twice": lambda of: [*of.text, of.stop, of.stop],
    "text behind the end": lambda of: [*of.text, of.stop, *of.text],
    "white space": lambda of: [*of.space, of.stop],
    "no end": lambda of: of.text,
    "half a character": lambda of: [*of.text, *of.half],
    "half a character, then the end": lambda of: [*of.text, *of.half, of.stop],
    "half a character inside": lambda of: [*of.text, *of.half, *of.text, of.stop],
    "half a character before a control token": lambda of: [
        *(*of.text, *of.half, of.control, *of.text, of.stop)
    ],
    "a control token first": lambda of: [of.control, *of.text, of.stop],
    "a control token last": lambda of: [*of.text, of.control, of.stop],
    "an angle bracket": lambda of: [*of.bracket, of.stop],
}


@pytest.mark.parametrize("agent", [MessagesAgent, ClaudeCode, Codex, PlainChat])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("pair", EDGES, ids=lambda pair: pair.name)
def test_unusual_ends_of_output(pair: Pair, end: str, agent: type[Agent]) -> None:
    require(pair)
    asyncio.run(_run_and_continue(pair, ENDS[end](_Pieces(pair)), agent()))


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
