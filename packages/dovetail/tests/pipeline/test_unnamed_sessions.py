"""Prefix diagnostics of clients without a session id: the same report as with one."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from agent_clients import Agent, ChatAgent, MessagesAgent, PlainChat
from real_models import PAIRS, model, require
from scripted_run import ScriptedRunner

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.prompt.prefix_report import PrefixReport
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock

OUTPUTS: list[list[OutputBlock]] = [
    [ReasoningBlock("Let me look."), ToolCallBlock("", "run_command", '{"command": "ls"}')],
    [
        ReasoningBlock("I know."),
        TextBlock("There are three files in this folder, all of them old."),
    ],
    [ToolCallBlock("", "run_command", '{"command": "cat a"}')],
]


def _edit_user_message(number: int) -> Callable[[Agent], object]:
    """Return a change of the text of one of the user's messages."""

    def edit(agent: Agent) -> None:
        own = [one for one in agent.history if one["role"] == "user" and _is_text(one["content"])]
        own[number]["content"] = "Something else."

    return edit


def _is_text(content: Any) -> bool:
    return isinstance(content, str) or content[0]["type"] == "text"


def _remove_last_result(agent: Agent) -> None:
    del agent.history[-2:]


CHANGES: dict[str, Callable[[Agent], object]] = {
    "nothing": lambda agent: None,
    "header": lambda agent: agent.set_system("Another system text."),
    "tools": lambda agent: agent.tools.pop("edit_file"),
    "first message": _edit_user_message(0),
    "second message": _edit_user_message(1),
    "shorter history": _remove_last_result,
}


def _runner() -> ScriptedRunner:
    pair = next(pair for pair in PAIRS if pair.name == "Qwen3")
    require(pair)
    loaded = model(pair)
    preparer = ChatPreparer(loaded, Ledger(MemoryLedgerStore()), Keyring([b"k" * 32]))
    writer = TurnWriter(loaded.tool_parser, loaded.reasoning_parser)
    return ScriptedRunner(preparer, loaded.tokenizer, min(loaded.stop_ids), writer)


async def _run_conversation(runner: ScriptedRunner, agent: Agent) -> None:
    """Have a conversation with two messages of the user, and calls after both."""
    agent.add_user_message("Go, and look at the files.")
    for at, blocks in enumerate(OUTPUTS):
        turn = await runner.run_blocks(agent, blocks)
        if turn.calls:
            agent.add_results([(call, "a file") for call in turn.calls])
        if at == 1:
            agent.add_user_message("And what do they contain?")


async def _report(
    client: type[Agent], change: Callable[[Agent], object], *, named: bool
) -> PrefixReport:
    runner, agent, other = _runner(), client("s-1"), client("s-2")
    for one in (other, agent):
        if not named:
            one.headers = {
                name: value for name, value in one.headers.items() if "session" not in name
            }
    other.add_user_message("An unrelated question.")
    await runner.run_blocks(other, [TextBlock("An answer.")])
    await _run_conversation(runner, agent)
    change(agent)
    prepared = await runner.prepare(agent)
    assert (prepared.request.identity.session is not None) is named
    return prepared.diagnosis


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("client", [MessagesAgent, ChatAgent, PlainChat])
def test_report_does_not_depend_on_a_session_id(client: type[Agent], change: str) -> None:
    async def main() -> None:
        named = await _report(client, CHANGES[change], named=True)
        unnamed = await _report(client, CHANGES[change], named=False)
        assert named.reason != "first"
        assert unnamed == named

    asyncio.run(main())


def test_new_conversation_is_a_first_prompt() -> None:
    async def main() -> None:
        runner = _runner()
        for _ in range(2):
            agent = PlainChat("s-1")
            agent.headers = {}
            agent.add_user_message("Go, and look at the files.")
            prepared = await runner.prepare(agent)
            assert prepared.diagnosis.reason == "first"
            await runner.run_blocks(agent, OUTPUTS[1])
        assert prepared.diagnosis.shared_tokens == prepared.diagnosis.total_tokens

    asyncio.run(main())
