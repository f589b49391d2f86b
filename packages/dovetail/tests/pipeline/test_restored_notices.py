"""A notice about unavailable tools stays in place when turns are restored from their seals."""

import asyncio

import msgspec
from agent_clients import Agent, Codex
from real_models import PAIRS, model, require
from scripted_run import ScriptedRunner

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import ReasoningBlock, ToolCallBlock

THINK = ReasoningBlock("Let me look.")
RUN = ToolCallBlock("", "run_command", '{"command": "ls"}')
NOTICE = "These tools are not available on this server: web_search"


class UnavailableToolRunner(ScriptedRunner):
    """Responds like a server without a provider of web search."""

    async def prepare(self, agent: Agent) -> PreparedRequest:
        body, headers = agent.request()
        request = agent.codec.decode(body, headers)
        names = ("web_search",)
        return await self.preparer.prepare(
            msgspec.structs.replace(request, unavailable_tools=names)
        )


def _runner(loaded: Model) -> UnavailableToolRunner:
    """Create a server with an empty ledger and the same key."""
    ledger = Ledger(MemoryLedgerStore())
    preparer = ChatPreparer(loaded, ledger, Keyring([b"k" * 32]), clock=lambda: 0.0)
    writer = TurnWriter(loaded.tool_parser, loaded.reasoning_parser)
    return UnavailableToolRunner(preparer, loaded.tokenizer, min(loaded.stop_ids), writer)


def test_notice_stays_in_place_without_the_ledger() -> None:
    async def main() -> None:
        pair = next(pair for pair in PAIRS if pair.name == "Qwen3")
        require(pair)
        loaded = model(pair)
        agent = Codex()
        agent.add_user_message("Go.")
        runner, known = _runner(loaded), None
        for at in range(6):
            runner = _runner(loaded) if at in (2, 3) else runner
            turn = await runner.run_blocks(agent, [THINK, RUN])
            ids = turn.prepared.prompt.ids
            assert known is None or ids[: len(known)] == known
            assert loaded.tokenizer.decode(ids).count(NOTICE) == 1
            known = turn.token_ids
            agent.add_results([(turn.calls[0], "a file")])

    asyncio.run(main())
