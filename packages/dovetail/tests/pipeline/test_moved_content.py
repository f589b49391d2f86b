"""Content that a harness moves to the end of each request does not change the prefix."""

import asyncio
from typing import Any

import pytest
from agent_clients import ChatAgent, MessagesAgent
from real_models import PAIRS, model, require
from scripted_run import ScriptedRunner

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
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


class ReminderAgent(ChatAgent):
    """Ends the newest message of the user with a reminder of the mode, like OpenCode."""

    mode = "plan"

    def body(self) -> dict[str, Any]:
        body = super().body()
        messages = [dict(message) for message in body["messages"]]
        newest = next(m for m in reversed(messages) if m["role"] == "user")
        reminder = f"<system-reminder>\nThe mode is {self.mode}.\n</system-reminder>"
        parts = [{"type": "text", "text": text} for text in (newest["content"], reminder)]
        newest["content"] = parts
        return {**body, "messages": messages}


def _model(name: str) -> Model:
    pair = next(pair for pair in PAIRS if pair.name == name)
    require(pair)
    return model(pair)


def _runner(loaded: Model, ledger: Ledger | None = None, *, keep: bool = True) -> ScriptedRunner:
    preparer = ChatPreparer(
        loaded,
        ledger or Ledger(MemoryLedgerStore()),
        Keyring([b"k" * 32]),
        PromptSettings(keep_moved_content=keep),
        clock=lambda: 0.0,
    )
    writer = TurnWriter(loaded.tool_parser, loaded.reasoning_parser)
    return ScriptedRunner(preparer, loaded.tokenizer, min(loaded.stop_ids), writer)


@pytest.mark.parametrize("name", ["Qwen3", "Qwen3-Coder", "gpt-oss", "Kimi-K2"])
@pytest.mark.parametrize("keep", [True, False])
def test_moved_context_keeps_the_prefix(name: str, keep: bool) -> None:
    async def main() -> None:
        loaded = _model(name)
        runner = _runner(loaded, keep=keep)
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


@pytest.mark.parametrize("changes", [(), (2,), (1, 2, 3, 4, 5)], ids=["never", "once", "always"])
def test_moved_context_keeps_the_prefix_over_restarts(changes: tuple[int, ...]) -> None:
    """The server restarts before these requests, or another worker process gets them."""

    async def main() -> None:
        loaded, store = _model("Qwen3-Coder"), MemoryLedgerStore()
        runner = _runner(loaded, Ledger(store))
        agent = MovingContextAgent()
        agent.add_user_message("Go.")
        last = None
        for at in range(6):
            runner = _runner(loaded, Ledger(store)) if at in changes else runner
            turn = await runner.run_blocks(agent, [RUN])
            assert last is None or turn.prepared.prompt.ids[: len(last)] == last
            last = turn.token_ids
            agent.add_results([(turn.calls[0], "a file")])
        shown = loaded.tokenizer.decode(turn.prepared.prompt.ids)
        assert shown.count("<<<BEGIN CONTEXT>>>") == 6

    asyncio.run(main())


def test_two_workers_keep_moved_content() -> None:
    """Each knows only its own requests."""

    async def main() -> None:
        loaded, store = _model("Qwen3-Coder"), MemoryLedgerStore()
        workers = [_runner(loaded, Ledger(store)) for _ in range(2)]
        agent = MovingContextAgent()
        agent.add_user_message("Go.")
        last = None
        for at in (0, 0, 1, 1, 1, 0, 1, 0):
            turn = await workers[at].run_blocks(agent, [RUN])
            assert last is None or turn.prepared.prompt.ids[: len(last)] == last
            last = turn.token_ids
            agent.add_results([(turn.calls[0], "a file")])

    asyncio.run(main())


def test_reminders_of_a_mode_keep_the_prefix_over_restarts() -> None:
    async def main() -> None:
        loaded, store = _model("Qwen3-Coder"), MemoryLedgerStore()
        agent = ReminderAgent()
        last = None
        for mode in ("plan", "plan", "build", "build"):
            runner = _runner(loaded, Ledger(store))
            agent.mode = mode
            agent.add_user_message("On.")
            turn = await runner.run_blocks(agent, [RUN])
            assert last is None or turn.prepared.prompt.ids[: len(last)] == last
            agent.add_results([(turn.calls[0], "a file")])
            last = (await runner.run_blocks(agent, [TextBlock("Done.")])).token_ids
        shown = loaded.tokenizer.decode(turn.prepared.prompt.ids)
        assert (shown.count("is plan."), shown.count("is build.")) == (2, 2)

    asyncio.run(main())


def test_recorded_content_is_not_restored_into_an_edited_message() -> None:
    async def main() -> None:
        loaded, store = _model("Qwen3-Coder"), MemoryLedgerStore()
        agent = MovingContextAgent()
        agent.add_user_message("Go.")
        turn = await _runner(loaded, Ledger(store)).run_blocks(agent, [RUN])
        agent.add_results([(turn.calls[0], "a file")])
        agent.history[0] = {"role": "user", "content": "Stop."}
        prepared = await _runner(loaded, Ledger(store)).prepare(agent)
        assert loaded.tokenizer.decode(prepared.prompt.ids).count("<<<BEGIN CONTEXT>>>") == 1

    asyncio.run(main())
