"""Tools that arrive, change or leave during a session never change the prefix."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from agent_clients import TOOLS, AgentCall, MessagesAgent
from real_models import PAIRS, model, require
from scripted_run import ScriptedRunner, ScriptedTurn

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import InvalidRequest, ReasoningBlock, TextBlock, ToolCallBlock

THINK = ReasoningBlock("Let me look.")
SEARCH = ToolCallBlock("", "ToolSearch", '{"query": "fetch"}')
FETCH = ToolCallBlock("", "WebFetch", '{"url": "http://a", "depth": 2}')
RUN = ToolCallBlock("", "run_command", '{"command": "ls"}')
SEARCH_SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
FETCH_TOOL: dict[str, Any] = {
    "name": "WebFetch",
    "description": "Fetches one page.",
    "input_schema": {
        "type": "object",
        "properties": {"url": {"type": "string"}, "depth": {"type": "integer"}},
    },
}
PLACEHOLDER = {
    "name": "DeferredToolPlaceholder",
    "description": "Never call this tool.",
    "input_schema": {"type": "object", "properties": {}},
    "defer_loading": True,
}


class ToolSearchAgent(MessagesAgent):
    """A harness that defers tools as Claude Code 2.1.325 does.

    The list of tools has a placeholder that moves, and gains each tool that a search finds.
    """

    def __init__(self, session: str = "s-1") -> None:
        super().__init__(session)
        self.tools = {**TOOLS, "ToolSearch": SEARCH_SCHEMA}
        self.more: list[dict[str, Any]] = []
        self.requests = 0
        self.choice: dict[str, Any] | None = None

    def body(self) -> dict[str, Any]:
        body = super().body()
        self.requests += 1
        place = self.requests % len(body["tools"])
        body["tools"] = [
            *body["tools"][:place], PLACEHOLDER, *body["tools"][place:], *self.more,
        ]  # fmt: skip
        if self.choice is not None:
            body["tool_choice"] = self.choice
        return body

    def load(self, call: AgentCall, *tools: dict[str, Any]) -> None:
        """Return references as the result of a search, and declare the tools."""
        references = [{"type": "tool_reference", "tool_name": tool["name"]} for tool in tools]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": references}
        self.history.append({"role": "user", "content": [result]})
        self.more += [{**tool, "defer_loading": True} for tool in tools]


def _model(name: str) -> Model:
    pair = next(pair for pair in PAIRS if pair.name == name)
    require(pair)
    return model(pair)


def _runner(model: Model, ledger: Ledger | None = None) -> ScriptedRunner:
    ledger = ledger or Ledger(MemoryLedgerStore())
    preparer = ChatPreparer(model, ledger, Keyring([b"k" * 32]), clock=lambda: 0.0)
    writer = TurnWriter(model.tool_parser, model.reasoning_parser)
    return ScriptedRunner(preparer, model.tokenizer, min(model.stop_ids), writer)


def _run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def _extends(prepared: PreparedRequest, turn: ScriptedTurn) -> bool:
    return prepared.prompt.ids[: len(turn.token_ids)] == turn.token_ids


def _names(prepared: PreparedRequest) -> list[str]:
    return [tool.name for tool in prepared.request.tools]


@pytest.mark.parametrize("name", [pair.name for pair in PAIRS])
def test_loaded_tool_is_shown_at_its_reference_and_keeps_the_prefix(name: str) -> None:
    async def main() -> None:
        loaded = _model(name)
        runner, agent = _runner(loaded), ToolSearchAgent()
        agent.add_user_message("Fetch the page.")
        first = await runner.run_blocks(agent, [SEARCH])
        assert "WebFetch" not in loaded.tokenizer.decode(first.prepared.prompt.ids)
        assert "DeferredToolPlaceholder" not in loaded.tokenizer.decode(first.prepared.prompt.ids)
        agent.load(first.calls[0], FETCH_TOOL)
        second = await runner.run_blocks(agent, [FETCH])
        assert _extends(second.prepared, first)
        shown = loaded.tokenizer.decode(second.prepared.prompt.ids[len(first.token_ids) :])
        assert "Fetches one page." in shown
        assert _names(second.prepared) == ["run_command", "edit_file", "ToolSearch", "WebFetch"]
        assert [call.name for call in second.calls] == ["WebFetch"]
        agent.add_results([(second.calls[0], "a page")])
        third = await runner.prepare(agent)
        assert _extends(third, second)

    _run(main())


def test_recorded_definition_wins_after_a_restart() -> None:
    """The client changes the definition: the old text stays, the new one is announced."""

    async def main() -> None:
        loaded, ledger = _model("Qwen3-Coder"), Ledger(MemoryLedgerStore())
        runner, agent = _runner(loaded, ledger), ToolSearchAgent()
        agent.add_user_message("Fetch the page.")
        first = await runner.run_blocks(agent, [SEARCH])
        agent.load(first.calls[0], FETCH_TOOL)
        second = await runner.run_blocks(agent, [FETCH])
        agent.more[0] = {**agent.more[0], "description": "Fetches two pages."}
        agent.add_results([(second.calls[0], "a page")])
        prepared = await _runner(loaded, ledger).prepare(agent)
        assert _extends(prepared, second)
        tail = loaded.tokenizer.decode(prepared.prompt.ids[len(second.token_ids) :])
        assert "Fetches two pages." in tail
        assert "definitions of these tools have changed" in tail

    _run(main())


@pytest.mark.parametrize("name", ["Qwen3", "Qwen3-Coder", "gpt-oss", "Mistral-Nemo"])
def test_undeferred_tool_is_announced_at_the_end(name: str) -> None:
    """A late MCP server: the tool appears in the middle of the list, without a reference."""

    async def main() -> None:
        loaded = _model(name)
        runner, agent = _runner(loaded), MessagesAgent()
        agent.add_user_message("Go. " * 200)
        first = await runner.run_blocks(agent, [RUN])
        agent.add_results([(first.calls[0], "a file")])
        agent.tools = {"WebFetch": FETCH_TOOL["input_schema"], **agent.tools}
        second = await runner.run_blocks(agent, [FETCH])
        assert _extends(second.prepared, first)
        assert "tools_announced" in second.prepared.prompt.notes
        assert [call.name for call in second.calls] == ["WebFetch"]
        agent.add_results([(second.calls[0], "a page")])
        third = await runner.run_blocks(agent, [RUN])
        assert _extends(third.prepared, second)
        assert "tools_announced" not in third.prepared.prompt.notes
        del agent.tools["WebFetch"]
        agent.add_results([(third.calls[0], "a file")])
        fourth = await runner.run_blocks(agent, [RUN])
        assert _extends(fourth.prepared, third)
        assert "no longer available: WebFetch" in loaded.tokenizer.decode(
            fourth.prepared.prompt.ids[len(third.token_ids) :]
        )
        assert "WebFetch" not in _names(fourth.prepared)
        agent.add_results([(fourth.calls[0], "a file")])
        assert _extends(await runner.prepare(agent), fourth)

    _run(main())


def test_order_and_repetition_of_tools_do_not_change_the_prompt() -> None:
    async def main() -> None:
        loaded = _model("Qwen3")
        runner, agent = _runner(loaded), MessagesAgent()
        agent.add_user_message("Go.")
        first = await runner.run_blocks(agent, [THINK, RUN])
        agent.add_results([(first.calls[0], "a file")])
        expected = (await runner.prepare(agent)).prompt.ids
        agent.tools = dict(reversed(agent.tools.items()))
        assert (await runner.prepare(agent)).prompt.ids == expected

    _run(main())


def test_removed_head_tool_stays_in_the_head_after_a_restart() -> None:
    async def main() -> None:
        loaded, ledger = _model("Qwen3"), Ledger(MemoryLedgerStore())
        runner, agent = _runner(loaded, ledger), MessagesAgent()
        agent.add_user_message("Go. " * 400)
        first = await runner.run_blocks(agent, [RUN])
        agent.add_results([(first.calls[0], "a file")])
        del agent.tools["edit_file"]
        second = await runner.run_blocks(agent, [RUN])
        assert _extends(second.prepared, first)
        agent.add_results([(second.calls[0], "a file")])
        prepared = await _runner(loaded, ledger).prepare(agent)
        assert _extends(prepared, second)
        assert _names(prepared) == ["run_command"]

    _run(main())


def test_new_head_is_used_when_it_is_cheaper() -> None:
    """A short conversation and a long withdrawn definition: the head is rendered again."""

    async def main() -> None:
        loaded = _model("Qwen3")
        runner, agent = _runner(loaded), MessagesAgent()
        agent.tools["huge"] = {"type": "object", "description": "word " * 2000}
        agent.add_user_message("Go.")
        first = await runner.run_blocks(agent, [RUN])
        agent.add_results([(first.calls[0], "a file")])
        del agent.tools["huge"]
        second = await runner.prepare(agent)
        assert "tool_head_replaced" in second.prompt.notes
        assert second.diagnosis.reason == "tools"
        assert not _extends(second, first)
        assert len(second.prompt.ids) < len(first.prepared.prompt.ids)

    _run(main())


def test_changed_tool_before_long_definitions_is_announced() -> None:
    """OpenCode's `task` changes with the agent: a new head would move the tools after it."""

    async def main() -> None:
        loaded = _model("Qwen3")
        runner, agent = _runner(loaded), MessagesAgent()
        task = {"type": "object", "description": "agent " * 200}
        agent.tools = {"task": task, **agent.tools}
        agent.tools["long"] = {"type": "object", "description": "word " * 400}
        agent.add_user_message("Go.")
        first = await runner.run_blocks(agent, [RUN])
        agent.add_results([(first.calls[0], "a file")])
        agent.tools["task"] = {**task, "description": "agent " * 201}
        second = await runner.prepare(agent)
        assert "tools_announced" in second.prompt.notes
        assert _extends(second, first)

    _run(main())


def test_tool_that_changes_often_gives_a_new_head() -> None:
    async def main() -> None:
        runner, agent = _runner(_model("Qwen3")), MessagesAgent()
        task = {"type": "object", "description": "agent " * 200}
        agent.tools["task"] = task
        agent.tools["long"] = {"type": "object", "description": "word " * 2000}
        agent.add_user_message("Go.")
        notes: list[tuple[str, ...]] = []
        for at in range(12):
            turn = await runner.run_blocks(agent, [RUN])
            notes.append(turn.prepared.prompt.notes)
            agent.add_results([(turn.calls[0], "a file")])
            agent.tools["task"] = {**task, "description": "agent " * (201 + at % 2)}
        replaced = [at for at, note in enumerate(notes) if "tool_head_replaced" in note]
        assert replaced[0] == 8  # the notices are then longer than the tool after it

    _run(main())


def test_added_and_removed_tools_of_the_sdk() -> None:
    """`runner.add_tools()` and `remove_tools()` send system messages with tool changes."""

    async def main() -> None:
        loaded = _model("Qwen3")
        runner, agent = _runner(loaded), MessagesAgent()
        agent.add_user_message("Go.")
        first = await runner.run_blocks(agent, [RUN])
        agent.add_results([(first.calls[0], "a file")])
        definition = {"type": "tool_definition", "definition": FETCH_TOOL}
        added = {"type": "tool_addition", "tool": definition}
        agent.history.append({"role": "system", "content": [added]})
        second = await runner.run_blocks(agent, [FETCH])
        assert _extends(second.prepared, first)
        assert "WebFetch" in _names(second.prepared)
        agent.add_results([(second.calls[0], "a page")])
        gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "WebFetch"}}
        agent.history.append({"role": "system", "content": [gone]})
        third = await runner.run_blocks(agent, [TextBlock("Done.")])
        assert _extends(third.prepared, second)
        assert _names(third.prepared) == ["run_command", "edit_file"]
        tail = loaded.tokenizer.decode(third.prepared.prompt.ids[len(second.token_ids) :])
        assert tail.count("no longer available") == 1

    _run(main())


def test_tool_choice_cannot_name_a_tool_that_is_not_loaded() -> None:
    async def main() -> None:
        runner, agent = _runner(_model("Qwen3")), ToolSearchAgent()
        agent.add_user_message("Go.")
        agent.choice = {"type": "tool", "name": "DeferredToolPlaceholder"}
        with pytest.raises(InvalidRequest, match="not available yet"):
            await runner.prepare(agent)

    _run(main())


def test_reference_to_an_undefined_tool_is_reported() -> None:
    async def main() -> None:
        runner, agent = _runner(_model("Qwen3")), ToolSearchAgent()
        agent.add_user_message("Fetch the page.")
        first = await runner.run_blocks(agent, [SEARCH])
        agent.load(first.calls[0], FETCH_TOOL)
        agent.more.clear()
        prepared = await runner.prepare(agent)
        assert "tool_undefined" in prepared.prompt.notes
        assert "WebFetch" not in _names(prepared)

    _run(main())


def test_repeated_references_show_the_definition_once() -> None:
    """Otherwise a small request with many references gives a huge prompt."""

    async def main() -> None:
        loaded = _model("Qwen3")
        runner, agent = _runner(loaded), ToolSearchAgent()
        agent.add_user_message("Fetch the page.")
        first = await runner.run_blocks(agent, [SEARCH])
        agent.load(first.calls[0], *[FETCH_TOOL] * 50)
        agent.more = agent.more[:1]
        changed = {"type": "tool_reference", "name": "WebFetch"}
        for _ in range(50):
            kinds = ("tool_removal", "tool_addition")
            changes = [{"type": kind, "tool": changed} for kind in kinds]
            agent.history.append({"role": "system", "content": changes})
        prepared = await runner.prepare(agent)
        shown = loaded.tokenizer.decode(prepared.prompt.ids)
        assert shown.count("Fetches one page.") == 1
        assert "WebFetch" in _names(prepared)

    _run(main())
