"""Context edits, reasoning retention and truncation in whole sessions: breaks and numbers."""

import asyncio
from collections.abc import Coroutine, Sequence
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
from dovetail.pipeline.rendering import PromptSettings
from dovetail.prompt.context_edits import CLEARED_RESULT
from dovetail.prompt.prefix_diagnostics import count_common_ids
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import (
    OutputBlock,
    ReasoningBlock,
    ReasoningRetention,
    Request,
    TextBlock,
    ToolCallBlock,
)

RETAINING, DROPPING = "Ministral-3", "Qwen3"  # what the template does to earlier reasoning
CALL = ToolCallBlock("", "run_command", '{"command": "ls"}')
OUTPUT = "a line of a long file\n" * 40


class WindowedRunner(ScriptedRunner):
    """Responds like a server with a context window of this size."""

    window: int | None = None

    async def prepare(self, agent: Agent) -> PreparedRequest:
        return await self.preparer.prepare(decode(agent), max_tokens=self.window)


def decode(agent: Agent) -> Request:
    body, headers = agent.request()
    request: Request = agent.codec.decode(body, headers)
    return request


class EditingAgent(MessagesAgent):
    """Sends `context_management` and an extension field."""

    edits: Sequence[dict[str, Any]] | None = None
    nvext: dict[str, Any] | None = None

    def body(self) -> dict[str, Any]:
        body = super().body()
        if self.edits is not None:
            body["context_management"] = {"edits": list(self.edits)}
        if self.nvext is not None:
            body["nvext"] = self.nvext
        return body


def load(name: str) -> Model:
    pair = next(pair for pair in PAIRS if pair.name == name)
    require(pair)
    return model(pair)


def new_runner(name: str, settings: PromptSettings | None = None) -> WindowedRunner:
    loaded = load(name)
    ledger, keyring = Ledger(MemoryLedgerStore()), Keyring([b"k" * 32])
    preparer = ChatPreparer(loaded, ledger, keyring, settings)
    writer = TurnWriter(loaded.tool_parser, loaded.reasoning_parser)
    return WindowedRunner(preparer, loaded.tokenizer, min(loaded.stop_ids), writer)


async def step(
    runner: ScriptedRunner, agent: Agent, *blocks: OutputBlock, output: str = OUTPUT
) -> ScriptedTurn:
    turn = await runner.run_blocks(agent, blocks)
    if turn.calls:
        agent.add_results([(call, output) for call in turn.calls])
    return turn


def think(text: str) -> ReasoningBlock:
    return ReasoningBlock(f"I consider {text} " + "with care " * 20)


def re_prefilled(turns: Sequence[ScriptedTurn]) -> list[int]:
    """For each turn but the first, the known tokens that its prompt does not begin with."""
    return [
        len(before.token_ids) - count_common_ids(before.token_ids, after.prepared.prompt.ids)
        for before, after in pairwise(turns)
    ]


def text_of(runner: ScriptedRunner, prepared: PreparedRequest) -> str:
    return runner.tokenizer.decode(prepared.prompt.ids)


async def removed_tokens(runner: WindowedRunner, agent: Agent) -> int:
    """The difference that the edits of a request make, by counting tokens."""
    request = decode(agent)
    edited = await runner.preparer.count_tokens(request, runner.window)
    return await runner.preparer.count_tokens(request, edit=False) - edited


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


CLEAR_RESULTS = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "tool_uses", "value": 5},
    "keep": {"type": "tool_uses", "value": 2},
}


@pytest.mark.parametrize("name", [RETAINING, DROPPING])
def test_clearing_tool_results_costs_one_break_per_edit(name: str) -> None:
    async def main() -> None:
        runner, agent = new_runner(name), EditingAgent()
        agent.edits = [CLEAR_RESULTS]
        agent.add_user_message("Go.")
        for at in range(14):
            await step(runner, agent, think(str(at)), CALL)
        counts = [sum(e.count for e in t.prepared.applied_edits) for t in runner.turns]
        # After six calls four are cleared; two stay, and four more may follow.
        assert counts == [0] * 6 + [4] * 4 + [8] * 4
        breaks = [at for at, tokens in enumerate(re_prefilled(runner.turns), 1) if tokens]
        assert breaks == [6, 10]
        last = runner.turns[-1].prepared
        assert text_of(runner, last).count(CLEARED_RESULT) == 8
        origins = [turn.prepared.prompt.origin for turn in runner.turns]
        assert origins[7:10] == origins[11:14] == ["grown"] * 3

    run(main())


def test_the_reported_numbers_equal_the_effect() -> None:
    async def main() -> None:
        runner, agent = new_runner(RETAINING), EditingAgent()
        agent.edits = [{"type": "clear_thinking_20251015"}, CLEAR_RESULTS]
        agent.add_user_message("Go.")
        for at in range(12):
            turn = await step(runner, agent, think(str(at)), CALL)
            applied = turn.prepared.applied_edits
            if at in (1, 6, 7, 10, 11):
                agent.history, later = agent.history[:-2], agent.history[-2:]
                assert sum(e.tokens for e in applied) == await removed_tokens(runner, agent)
                agent.history += later
        kinds = [edit.type for edit in runner.turns[-1].prepared.applied_edits]
        assert kinds == ["clear_thinking_20251015", "clear_tool_uses_20250919"]

    run(main())


def test_nothing_is_cleared_if_too_little_could_be() -> None:
    async def main() -> None:
        runner, agent = new_runner(DROPPING), EditingAgent()
        agent.edits = [
            {**CLEAR_RESULTS, "clear_at_least": {"type": "input_tokens", "value": 100_000}}
        ]
        agent.add_user_message("Go.")
        for _ in range(8):
            turn = await step(runner, agent, CALL)
        assert turn.prepared.applied_edits == ()
        assert not any(re_prefilled(runner.turns))

    run(main())


def test_cleared_arguments_are_not_spliced_from_the_ledger() -> None:
    async def main() -> None:
        runner, agent = new_runner(DROPPING), EditingAgent()
        agent.edits = [{**CLEAR_RESULTS, "clear_tool_inputs": True}]
        agent.add_user_message("Go.")
        for at in range(8):
            call = ToolCallBlock("", "run_command", f'{{"command": "secret{at}"}}')
            turn = await step(runner, agent, think(str(at)), call)
        text = text_of(runner, turn.prepared)
        assert [f"secret{at}" in text for at in range(7)] == [False] * 4 + [True] * 3
        assert [at for at, n in enumerate(re_prefilled(runner.turns), 1) if n] == [6]

    run(main())


def test_reasoning_is_retained_for_a_number_of_turns() -> None:
    async def main() -> None:
        runner, agent = new_runner(RETAINING), EditingAgent()
        keep = {"type": "thinking_turns", "value": 2}
        agent.edits = [{"type": "clear_thinking_20251015", "keep": keep}]
        for at in range(8):
            agent.add_user_message(f"Question {at}. " + "Some context. " * 60)
            await step(runner, agent, think(f"number{at};"), TextBlock("Fine."))
        [edit] = runner.turns[-1].prepared.applied_edits
        text = text_of(runner, runner.turns[-1].prepared)
        visible = [f"number{at};" in text for at in range(7)]
        assert visible == [False] * edit.count + [True] * (7 - edit.count)
        breaks = sum(tokens > 0 for tokens in re_prefilled(runner.turns))
        batches = {e.count for t in runner.turns for e in t.prepared.applied_edits}
        assert breaks == len(batches) < 4  # not one per turn

    run(main())


def test_edits_stay_in_force_without_and_end_with_another_context_management() -> None:
    async def main() -> None:
        runner, agent = new_runner(DROPPING), EditingAgent()
        agent.edits = [CLEAR_RESULTS]
        agent.add_user_message("Go.")
        for _ in range(7):
            await step(runner, agent, CALL)
        agent.edits = None
        silent = await runner.prepare(agent)
        assert silent.prompt.origin == "grown"
        assert silent.applied_edits[0].count == 4
        agent.edits = []
        assert CLEARED_RESULT not in text_of(runner, await runner.prepare(agent))

    run(main())


def test_edits_survive_a_changed_head() -> None:
    async def main() -> None:
        runner, agent = new_runner(DROPPING), EditingAgent()
        agent.edits = [CLEAR_RESULTS]
        agent.add_user_message("Go.")
        for _ in range(7):
            await step(runner, agent, think("it"), CALL)
        agent.set_system("Another system text.")
        text = text_of(runner, await runner.prepare(agent))
        assert text.count(CLEARED_RESULT) == 4
        assert text.count("I consider it") == 7

    run(main())


async def _two_loops(runner: ScriptedRunner, agent: Agent) -> PreparedRequest:
    """A loop with a call and a final turn, twice, and a third question."""
    for at in range(2):
        agent.add_user_message(f"Question {at}.")
        await step(runner, agent, think(f"call{at};"), CALL)
        await step(runner, agent, think(f"final{at};"), TextBlock("Fine."))
    agent.add_user_message("And now?")
    await step(runner, agent, think("call2;"), CALL)
    return await runner.prepare(agent)


RETENTION: list[tuple[str, ReasoningRetention, str]] = [
    (DROPPING, "template", "call2"),
    (DROPPING, "tool-turns", "call0 call1 call2"),
    (DROPPING, "all", "call0 final0 call1 final1 call2"),
    (DROPPING, "none", "call2"),
    (RETAINING, "template", "call0 final0 call1 final1 call2"),
    (RETAINING, "tool-turns", "call0 call1 call2"),
    (RETAINING, "all", "call0 final0 call1 final1 call2"),
    (RETAINING, "none", "call2"),
]


@pytest.mark.parametrize("per_request", [False, True])
@pytest.mark.parametrize(("name", "retention", "expected"), RETENTION)
def test_retention_of_reasoning(
    name: str, retention: ReasoningRetention, expected: str, per_request: bool
) -> None:
    async def main() -> None:
        settings = PromptSettings(reasoning_retention="none" if per_request else retention)
        runner, agent = new_runner(name, settings), EditingAgent()
        agent.nvext = {"reasoning_retention": retention} if per_request else None
        prepared = await _two_loops(runner, agent)
        text = text_of(runner, prepared)
        names = [f"{kind}{at}" for at in range(3) for kind in ("call", "final")]
        assert [name for name in names if f"{name};" in text] == expected.split()
        assert prepared.prompt.origin == "grown"  # inside a loop, always
        loops = re_prefilled(runner.turns)
        assert loops[0] == loops[2] == 0
        if retention == "all":
            assert not any(loops)
        if retention == "tool-turns":  # only the last turn loses its reasoning
            length = len(runner.turns[1].generation.ids)
            assert 0 < loops[1] <= length
            assert 0 < loops[3] <= length

    run(main())


def test_retained_reasoning_of_unknown_turns_is_taken_from_the_client() -> None:
    """The ledger does not know these turns, and the template would drop their reasoning."""

    async def main() -> None:
        first, agent = new_runner(DROPPING), EditingAgent()
        await _two_loops(first, agent)
        for message in agent.history:
            for block in message["content"]:
                block.pop("signature", None)
        agent.nvext = {"reasoning_retention": "tool-turns"}
        other = new_runner(DROPPING)
        text = text_of(other, await other.prepare(agent))
        assert "call0;" in text
        assert "final0;" not in text

    run(main())


class TruncatingAgent(Codex):
    def body(self) -> dict[str, Any]:
        return {**super().body(), "truncation": "auto"}


def test_truncation_drops_the_oldest_turns_in_batches() -> None:
    async def main() -> None:
        runner, agent = new_runner(DROPPING), TruncatingAgent()
        runner.window = 3000
        for at in range(16):
            agent.add_user_message(f"Question {at};")
            await step(runner, agent, CALL, output="a word or two " * 60)
            await step(runner, agent, TextBlock("Fine."))
        prompts = [turn.prepared.prompt for turn in runner.turns]
        assert all(len(prompt.ids) <= 3000 for prompt in prompts)
        notes = [[n for n in p.notes if n.startswith("truncated_turns:")] for p in prompts]
        cuts = [at for at in range(1, len(notes)) if notes[at] != notes[at - 1]]
        assert 2 <= len(cuts) <= 6  # of 32 turns
        text = runner.tokenizer.decode(prompts[-1].ids)
        assert "careful engineer" in text  # the system text stays
        assert "Question 0;" not in text
        assert "Question 15;" in text
        losses = re_prefilled(runner.turns)
        long = [at for at, tokens in enumerate(losses, 1) if tokens > 300]
        assert set(long) <= set(cuts)

    run(main())


def test_without_truncation_nothing_is_dropped() -> None:
    async def main() -> None:
        runner, agent = new_runner(DROPPING), Codex()
        runner.window = 3000
        for at in range(8):
            agent.add_user_message(f"Question {at};")
            await step(runner, agent, CALL, output="a word or two " * 120)
            await step(runner, agent, TextBlock("Fine."))
        assert "Question 0;" in text_of(runner, runner.turns[-1].prepared)
        assert len(runner.turns[-1].prepared.prompt.ids) > 3000  # rejected by the caller

    run(main())
