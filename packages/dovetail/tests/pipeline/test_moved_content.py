"""Content that a harness moves to the end of each request does not change the prefix."""

import asyncio
from typing import Any

import pytest
from agent_clients import MessagesAgent
from real_models import PAIRS, model, require
from scripted_run import ScriptedRunner

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.rendering import PromptSettings
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import ReasoningBlock, TextBlock, ToolCallBlock

THINK = ReasoningBlock("Let me look.")
RUN = ToolCallBlock("", "run_command", '{"command": "ls"}')


class MovingContextAgent(MessagesAgent):
    """Ends each request with its own context, and removes the earlier ones, like OpenClaw."""

    def body(self) -> dict[str, Any]:
        text = f"<<<BEGIN CONTEXT>>>\nrequest {len(self.history)}\n<<<END CONTEXT>>>"
        context = {"role": "user", "content": text}
        return {**super().body(), "messages": [*self.history, context]}


@pytest.mark.parametrize("name", ["Qwen3", "Qwen3-Coder", "gpt-oss", "Kimi-K2"])
@pytest.mark.parametrize("keep", [True, False])
def test_moved_context_keeps_the_prefix(name: str, keep: bool) -> None:
    async def main() -> None:
        pair = next(pair for pair in PAIRS if pair.name == name)
        require(pair)
        loaded = model(pair)
        preparer = ChatPreparer(
            loaded,
            Ledger(MemoryLedgerStore()),
            Keyring([b"k" * 32]),
            PromptSettings(keep_moved_content=keep),
            clock=lambda: 0.0,
        )
        writer = TurnWriter(loaded.tool_parser, loaded.reasoning_parser)
        runner = ScriptedRunner(preparer, loaded.tokenizer, min(loaded.stop_ids), writer)
        agent = MovingContextAgent()
        agent.add_user_message("Go.")
        last = None
        for _ in range(3):
            turn = await runner.run_blocks(agent, [THINK, RUN] if name == "Qwen3" else [RUN])
            ids = turn.prepared.prompt.ids
            assert last is None or (ids[: len(last)] == last) is keep
            last = turn.token_ids
            agent.add_results([(turn.calls[0], "a file")])
        final = await runner.run_blocks(agent, [TextBlock("Done.")])
        assert (final.prepared.prompt.ids[: len(last or ())] == last) is keep
        tail = loaded.tokenizer.decode(final.prepared.prompt.ids[-200:])
        assert "request 7" in tail

    asyncio.run(main())
