"""Tools that a dropped turn loaded stay loaded: the model reads their definitions elsewhere."""

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest
from agent_clients import Agent, Codex, MessagesAgent
from real_models import PAIRS, model, require
from scripted_run import ScriptedRunner, ScriptedTurn

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import TextBlock, ToolCallBlock

RUN = ToolCallBlock("", "run_command", '{"command": "ls"}')
FETCH = ToolCallBlock("", "fetch", '{"url": "http://a"}')
DEFINITION = "Fetches one page of the web."
FETCH_TOOL: dict[str, Any] = {
    "type": "function",
    "name": "fetch",
    "description": DEFINITION,
    "parameters": {"type": "object", "properties": {"url": {"type": "string"}}},
    "defer_loading": True,
}
LONG = "a word or two " * 60
WINDOW = 3000


class SearchingAgent(Codex):
    """Finds a deferred tool, like Codex, and requests truncation."""

    def load(self) -> None:
        """Add a search and the tool that it found."""
        search = {"type": "tool_search_call", "call_id": "s1", "execution": "client"}
        found = {
            "type": "tool_search_output",
            "call_id": "s1",
            "execution": "client",
            "tools": [FETCH_TOOL],
        }
        self.history += [{**search, "status": "completed", "arguments": {"query": "fetch"}}, found]

    def body(self) -> dict[str, Any]:
        body = super().body()
        search = {"type": "tool_search", "execution": "client", "description": "Finds tools."}
        parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
        tools = [*body["tools"], {**search, "parameters": parameters}]
        return {**body, "tools": tools, "truncation": "auto"}


class WindowedRunner(ScriptedRunner):
    """Responds like a server with a small context window."""

    async def prepare(self, agent: Agent) -> PreparedRequest:
        body, headers = agent.request()
        return await self.preparer.prepare(agent.codec.decode(body, headers), max_tokens=WINDOW)


def _model() -> Model:
    pair = next(pair for pair in PAIRS if pair.name == "Qwen3-Coder")
    require(pair)
    return model(pair)


def _runner(loaded: Model, store: MemoryLedgerStore | None = None) -> WindowedRunner:
    ledger = Ledger(store or MemoryLedgerStore())
    preparer = ChatPreparer(loaded, ledger, Keyring([b"k" * 32]), clock=lambda: 0.0)
    writer = TurnWriter(loaded.tool_parser, loaded.reasoning_parser)
    return WindowedRunner(preparer, loaded.tokenizer, min(loaded.stop_ids), writer)


def _text(runner: ScriptedRunner, turn: ScriptedTurn) -> str:
    return runner.tokenizer.decode(turn.prepared.prompt.ids)


def _names(turn: ScriptedTurn) -> list[str]:
    return [tool.model_name for tool in turn.prepared.request.tools]


def _is_truncated(turn: ScriptedTurn) -> bool:
    return any(note.startswith("truncated_turns:") for note in turn.prepared.prompt.notes)


def _run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("in_one_loop", [False, True], ids=["questions", "one loop"])
def test_truncation_keeps_loaded_tools(restart: bool, in_one_loop: bool) -> None:
    async def main() -> None:
        loaded, store = _model(), MemoryLedgerStore()
        runner, agent = _runner(loaded, store), SearchingAgent()
        agent.add_user_message("Find a tool.")
        agent.load()
        turns: list[ScriptedTurn] = []
        for at in range(24):
            if restart:
                runner = _runner(loaded, store)
            turns.append(await runner.run_blocks(agent, [FETCH if at % 5 == 0 else RUN]))
            agent.add_results([(turns[-1].calls[0], LONG)])
            if not in_one_loop:
                turns.append(await runner.run_blocks(agent, [TextBlock("Done.")]))
                agent.add_user_message("Go on.")
        for turn in turns:
            assert "fetch" in _names(turn)
            assert _text(runner, turn).count(DEFINITION) == 1
            assert len(turn.prepared.prompt.ids) <= WINDOW
        assert _is_truncated(turns[-1])
        assert ("Find a tool." in _text(runner, turns[-1])) is in_one_loop
        breaks = [
            before.token_ids != after.prepared.prompt.ids[: len(before.token_ids)]
            for before, after in pairwise(turns)
        ]
        assert 1 <= sum(breaks) <= 6  # one for each truncation

    _run(main())


def test_truncation_keeps_announced_and_withdrawn_tools() -> None:
    async def main() -> None:
        loaded = _model()
        runner, agent = _runner(loaded), SearchingAgent()
        agent.add_user_message("Go. " * 200)
        turn = await runner.run_blocks(agent, [RUN])
        agent.add_results([(turn.calls[0], LONG)])
        schema = {"type": "object", "description": "A late tool."}
        agent.tools = {**agent.tools, "late": schema}
        del agent.tools["edit_file"]
        for _ in range(16):
            turn = await runner.run_blocks(agent, [RUN])
            agent.add_results([(turn.calls[0], LONG)])
        assert _is_truncated(turn)
        shown = _text(runner, turn)
        assert shown.count("<name>late</name>") == 1
        assert shown.count("no longer available: edit_file") == 1

    _run(main())


def test_compacted_history_without_the_search_reports_the_tool() -> None:
    """The client drops the search itself: the tool is deferred again, and the model reads so."""

    async def main() -> None:
        loaded = _model()
        runner, agent = _runner(loaded), SearchingAgent()
        agent.add_user_message("Find a tool. " * 100)
        agent.load()
        turn = await runner.run_blocks(agent, [FETCH])
        agent.add_results([(turn.calls[0], "a page")])
        turn = await runner.run_blocks(agent, [TextBlock("Done.")])
        search = [at for at, item in enumerate(agent.history) if "tool_search" in item["type"]]
        for at in reversed(search):
            del agent.history[at]
        agent.add_user_message("And now?")
        turn = await runner.run_blocks(agent, [TextBlock("Done.")])
        assert "fetch" not in _names(turn)
        assert "no longer available: fetch" in _text(runner, turn)

    _run(main())


def test_cleared_search_results_keep_the_definition() -> None:
    class EditingAgent(MessagesAgent):
        def body(self) -> dict[str, Any]:
            edit = {
                "type": "clear_tool_uses_20250919",
                "trigger": {"type": "tool_uses", "value": 3},
                "keep": {"type": "tool_uses", "value": 1},
            }
            fetch = {
                "name": "fetch",
                "description": DEFINITION,
                "input_schema": FETCH_TOOL["parameters"],
                "defer_loading": True,
            }
            body = super().body()
            tools = [*body["tools"], fetch]
            return {**body, "tools": tools, "context_management": {"edits": [edit]}}

    async def main() -> None:
        runner, agent = _runner(_model()), EditingAgent()
        agent.add_user_message("Go.")
        for at in range(6):
            turn = await runner.run_blocks(agent, [RUN])
            agent.add_results([(turn.calls[0], LONG)])
            if at == 0:
                reference = {"type": "tool_reference", "tool_name": "fetch"}
                agent.history[-1]["content"][0]["content"] = [reference]
        turn = await runner.run_blocks(agent, [FETCH])
        assert turn.prepared.applied_edits
        assert _text(runner, turn).count(DEFINITION) == 1
        assert "fetch" in _names(turn)

    _run(main())
