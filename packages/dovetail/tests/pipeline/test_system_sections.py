"""A section of the system text that changes on resume does not change the prefix."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from agent_clients import ChatAgent, MessagesAgent
from real_models import PAIRS, model, require
from scripted_run import ScriptedRunner, ScriptedTurn

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.pipeline.rendering import PromptSettings
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import TextBlock, ToolCallBlock

RUN = ToolCallBlock("", "run_command", '{"command": "ls"}')
DONE = TextBlock("Done.")
INSTRUCTIONS = "You are a careful engineer.\nWork in /repo."


def _system(branch: str, *files: str, instructions: str = INSTRUCTIONS, mark: str = "") -> str:
    """Return a system text that ends as Claude Code's does."""
    status = "\n".join(f"?? {name}" for name in files) or "(clean)"
    colon = "" if mark else ":"
    return (
        f"{instructions}\n\n{mark}gitStatus{colon} This is the git status.\n\n"
        f"Current branch: {branch}\n\nStatus:\n{status}\n\nRecent commits:\n1234567 begin"
    )


def _model() -> Model:
    pair = next(pair for pair in PAIRS if pair.name == "Qwen3-Coder")
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


def _extends(prepared: PreparedRequest, turn: ScriptedTurn) -> bool:
    return prepared.prompt.ids[: len(turn.token_ids)] == turn.token_ids


def _run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


@pytest.mark.parametrize("mark", ["", "# "], ids=["plain", "heading"])
@pytest.mark.parametrize("agent_type", [MessagesAgent, ChatAgent])
def test_git_status_stays_where_the_model_read_it(
    mark: str, agent_type: type[MessagesAgent | ChatAgent]
) -> None:
    """The server restarts between the two runs of the client."""

    async def main() -> None:
        loaded, ledger = _model(), Ledger(MemoryLedgerStore())
        runner, agent = _runner(loaded, ledger), agent_type()
        agent.set_system(_system("main", mark=mark))
        agent.add_user_message("Go.")
        first = await runner.run_blocks(agent, [RUN])
        agent.add_results([(first.calls[0], "a file")])
        second = await runner.run_blocks(agent, [DONE])

        runner = _runner(loaded, ledger)
        agent.set_system(_system("other", "new.txt", mark=mark))
        agent.add_user_message("Go on.")
        third = await runner.run_blocks(agent, [RUN])
        assert _extends(third.prepared, second)
        new = loaded.tokenizer.decode(third.prepared.prompt.ids[len(second.token_ids) :])
        assert new.count("Current branch: other") == 1
        assert new.count("?? new.txt") == 1
        assert "system_section_announced" in third.prepared.prompt.notes

        agent.add_results([(third.calls[0], "a file")])
        fourth = await _runner(loaded, ledger).run_blocks(agent, [DONE])
        assert _extends(fourth.prepared, third)
        assert "system_section_announced" not in fourth.prepared.prompt.notes
        whole = loaded.tokenizer.decode(fourth.prepared.prompt.ids)
        assert whole.count("gitStatus") == 2

        agent.set_system(_system("main", mark=mark))  # as in the head
        agent.add_user_message("And now?")
        fifth = await runner.prepare(agent)
        assert _extends(fifth, fourth)
        new = loaded.tokenizer.decode(fifth.prompt.ids[len(fourth.token_ids) :])
        assert new.count("Current branch: main") == 1

    _run(main())


@pytest.mark.parametrize(
    "system",
    [
        _system("other", instructions="You are a poet."),
        INSTRUCTIONS,
        f"{INSTRUCTIONS}\n\nIgnore gitStatus: it is old.",
    ],
    ids=["other instructions", "no section", "mention"],
)
def test_other_changes_of_the_system_text_give_a_new_head(system: str) -> None:
    async def main() -> None:
        loaded = _model()
        runner, agent = _runner(loaded), MessagesAgent()
        agent.set_system(_system("main"))
        agent.add_user_message("Go.")
        await runner.run_blocks(agent, [DONE])
        agent.set_system(_system("second"))
        agent.add_user_message("On.")
        await runner.run_blocks(agent, [DONE])
        agent.set_system(system)
        agent.add_user_message("On.")
        prepared = await runner.prepare(agent)
        shown = loaded.tokenizer.decode(prepared.prompt.ids)
        assert system in shown
        assert "branch: main" not in shown
        assert "branch: second" not in shown

    _run(main())


def test_many_changes_give_a_new_head() -> None:
    """Otherwise sections that are no longer valid would fill the context."""

    async def main() -> None:
        loaded = _model()
        runner, agent = _runner(loaded), MessagesAgent()
        sizes = []
        for at in range(30):
            agent.set_system(_system(f"branch-{at}", *("a long name of a file" for _ in range(20))))
            agent.add_user_message("On.")
            turn = await runner.run_blocks(agent, [DONE])
            shown = loaded.tokenizer.decode(turn.prepared.prompt.ids)
            assert f"branch: branch-{at}\n" in shown
            sizes.append(shown.count("Current branch"))
        assert 2 <= max(sizes) <= 6

    _run(main())


def test_setting_turns_the_sections_off() -> None:
    async def main() -> None:
        runner, agent = _runner(_model(), keep=False), MessagesAgent()
        agent.set_system(_system("main"))
        agent.add_user_message("Go.")
        first = await runner.run_blocks(agent, [DONE])
        agent.set_system(_system("other"))
        agent.add_user_message("On.")
        assert not _extends(await runner.prepare(agent), first)

    _run(main())
