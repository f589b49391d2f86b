"""An export contains exactly the ids that the engine received and returned."""

import asyncio
import copy
import json
import subprocess
import sys
from array import array
from math import nan

import msgspec
import pytest
from agent_clients import AGENTS, Agent, ClaudeCode, Codex, MessagesAgent, OpenClaw
from exactness_matrix import KEY, Session, send_question
from exactness_matrix import run_turn as take_turn
from exported_sessions import RecordingRunner, check, check_sample, count_breaks, exported
from ledger_entries import pack_logprobs, turn
from real_models import PAIRS, Pair, model, require
from session_script import SCRIPT, script_writer

from dovetail.ledger.entry import TOKEN_ID_TYPECODE, LedgerEntry, pack_ids, unpack_ids
from dovetail.ledger.export import LedgerExporter, MissingBranch
from dovetail.ledger.export_sample import TrainingSample
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.preparation import ChatPreparer
from dovetail_model import ReasoningBlock, TextBlock, ToolCallBlock

EVERY_PAIR = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
QWEN = next(pair for pair in PAIRS if pair.name == "Qwen3-Coder")
GPT = next(pair for pair in PAIRS if pair.name == "gpt-oss")
LONG = 30


def _runner(pair: Pair) -> tuple[RecordingRunner, Ledger]:
    require(pair)
    found, ledger = model(pair), Ledger(MemoryLedgerStore())
    preparer = ChatPreparer(found, ledger, KEY)
    stop = found.tokenizer.controls[(pair.stops or found.stop_strings)[0]]
    return RecordingRunner(preparer, found.tokenizer, stop, script_writer(pair).writer), ledger


@EVERY_PAIR
def test_sessions_of_every_agent_are_exported_exactly(pair: Pair) -> None:
    asyncio.run(_every_agent(pair))


async def _every_agent(pair: Pair) -> None:
    """Run all agents with one ledger: their sessions stay separate."""
    runner, ledger = _runner(pair)
    of_agent: dict[str, tuple[set[str], int]] = {}
    for kind in AGENTS:
        session, agent, before = Session(pair), kind(session=kind.name), set(runner.expected_turns)
        send_question(session, agent)
        for _ in SCRIPT:
            await take_turn(session, runner, agent)
        of_agent[kind.name] = set(runner.expected_turns) - before, count_breaks(session.turns)
    for name, (entries, broken) in of_agent.items():
        samples = await exported(ledger, name)
        check(samples, {entry: runner.expected_turns[entry] for entry in entries})
        assert len(samples) == 1 + broken
        assert {sample.session for sample in samples} == {name}
        _check_spans(samples, pair)
    await ledger.close()


def _check_spans(samples: list[TrainingSample], pair: Pair) -> None:
    """Check that the ids of a call contain its name, and that every kind of span occurs."""
    decode = model(pair).tokenizer.decode
    spans = [(sample, span) for sample in samples for t in sample.turns for span in t.spans]
    for sample, span in spans:
        if span.kind == "call":
            assert span.id
            assert span.name in decode(list(sample.ids[span.start : span.end]))
    thinks = model(pair).reasoning_parser is not None
    assert {span.kind for _, span in spans} == {"text", "call"} | (
        {"reasoning"} if thinks else set()
    )


def _line(at: int) -> list[ReasoningBlock | TextBlock | ToolCallBlock]:
    if at == LONG - 1:
        return [TextBlock("All done: é 漢字.")]
    arguments = json.dumps({"command": f"ls  {at}", "timeout": 1.0 * at})
    return [TextBlock(f"Step {at}.\n"), ToolCallBlock("", "run_command", arguments)]


@pytest.mark.parametrize("kind", [ClaudeCode, Codex, OpenClaw], ids=lambda kind: kind.name)
def test_a_long_session_with_a_stable_prefix_is_one_sample(kind: type[Agent]) -> None:
    async def main() -> None:
        runner, ledger = _runner(QWEN)
        agent = kind(session="long")
        agent.add_user_message("Go.")
        for at in range(LONG):
            result = await runner.run_blocks(agent, _line(at))
            agent.add_results([(call, f"result {at}\n" * 3) for call in result.calls])
        (sample,) = await exported(ledger, "long")
        assert len(sample.turns) == LONG
        check([sample], runner.expected_turns)
        assert sum(sample.loss_mask) == sum(len(t.output) for t in runner.expected_turns.values())
        await ledger.close()

    asyncio.run(main())


def test_a_sub_agent_has_separate_samples() -> None:
    async def main() -> None:
        runner, ledger = _runner(QWEN)
        main_line, sub = (
            ClaudeCode(session="s"),
            ClaudeCode(session="s", system="You are a helper."),
        )
        sub.headers = {**sub.headers, "x-claude-code-agent-id": "helper-1"}
        main_line.add_user_message("Go.")
        sub.add_user_message("Look.")
        for at in range(3):  # alternating
            for agent in (main_line, sub):
                result = await runner.run_blocks(agent, _line(at))
                agent.add_results([(call, "fine") for call in result.calls])
        samples = await exported(ledger, "s")
        assert sorted((one.agent, len(one.turns)) for one in samples) == [("", 3), ("helper-1", 3)]
        check(samples, runner.expected_turns)
        await ledger.close()

    asyncio.run(main())


def test_a_fork_is_a_separate_sample_without_duplicate_loss() -> None:
    async def main() -> None:
        runner, ledger = _runner(QWEN)
        agent = MessagesAgent(session="s")
        agent.add_user_message("Go.")
        await _step(runner, agent, 0)
        short = copy.deepcopy(agent)
        await _step(runner, short, 7)
        for at in (1, 2):
            await _step(runner, agent, at)
        first, second = await exported(ledger, "s")
        assert [len(first.turns), len(second.turns)] == [2, 2]
        check([first, second], runner.expected_turns)
        # The common turns are output in one sample and prompt in the other.
        shared = first.turns[0].end
        assert first.ids[:shared] == second.ids[:shared]
        assert sum(first.loss_mask[:shared]) > 0 == sum(second.loss_mask[:shared])
        await ledger.close()

    asyncio.run(main())


def test_an_edited_turn_begins_a_new_sample() -> None:
    async def main() -> None:
        runner, ledger = _runner(QWEN)
        agent = MessagesAgent(session="s")
        agent.add_user_message("Go.")
        for at in range(2):
            await _step(runner, agent, at)
        agent.history[1]["content"][0]["text"] = "I never said that."
        await _step(runner, agent, 2)
        samples = await exported(ledger, "s")
        assert [len(one.turns) for one in samples] == [2, 1]
        check(samples, runner.expected_turns)
        assert sum(samples[1].loss_mask[: samples[1].turns[0].prompt_end]) == 0
        await ledger.close()

    asyncio.run(main())


async def _step(runner: RecordingRunner, agent: Agent, at: int) -> None:
    result = await runner.run_blocks(agent, _line(at))
    agent.add_results([(call, "fine") for call in result.calls])


def test_a_client_without_sessions_has_one_per_branch() -> None:
    async def main() -> None:
        runner, ledger = _runner(QWEN)
        for _ in range(2):
            agent = OpenClaw()
            agent.headers = {}
            agent.add_user_message("Go.")
            for at in range(3):
                body, headers = agent.request()
                plain = {k: v for k, v in json.loads(body).items() if k != "prompt_cache_key"}
                prepared = await runner.preparer.prepare(
                    agent.codec.decode(json.dumps(plain).encode(), headers)
                )
                ids = [*runner.tokenizer.encode(f"Turn {at}."), runner.stop_id]
                await runner.run_tokens(agent, prepared, ids)
                agent.add_user_message("And?")
        listed = await ledger.list_sessions("")
        assert [one.turns for one in listed] == [3, 3]
        for one in listed:
            (sample,) = await exported(ledger, one.session)
            check_sample(sample, runner.expected_turns)
            assert sample.turns[0].entry == one.session
        await ledger.close()

    asyncio.run(main())


def test_stop_token_is_omitted_if_the_next_prompt_has_another() -> None:
    """gpt-oss ends a text turn with a token that its template never renders."""

    async def main() -> None:
        runner, ledger = _runner(GPT)
        controls = runner.tokenizer.controls
        agent = MessagesAgent(session="s")
        agent.add_user_message("Go.")
        prepared = await runner.prepare(agent)
        output = runner.tokenizer.encode("<|channel|>final<|message|>Done.")
        await runner.run_tokens(agent, prepared, [*output, controls["<|return|>"]])
        agent.add_user_message("And now?")
        prepared = await runner.prepare(agent)
        await runner.run_tokens(agent, prepared, [*output, controls["<|return|>"]])
        (sample,) = await exported(ledger, "s")
        check([sample], runner.expected_turns)
        first, last = sample.turns
        assert (first.stop, sample.ids[first.end]) == (controls["<|return|>"], controls["<|end|>"])
        assert sample.loss_mask[first.end] == 0
        assert sample.ids[-1] == last.stop
        assert sample.loss_mask[-1] == 1
        await ledger.close()

    asyncio.run(main())


def test_a_turn_is_found_by_every_id_known_to_clients() -> None:
    async def main() -> None:
        ledger = Ledger(MemoryLedgerStore())
        root = turn(
            "root", suffix=pack_ids([1]), generated=pack_ids([2, 3]), session="s", calls=("call_9",)
        )
        leaf = turn(
            "leaf",
            parent="root",
            prefix_tokens=3,
            suffix=pack_ids([2]),
            generated=pack_ids([5]),
            session="s",
        )
        other = turn("other", suffix=pack_ids([1]), generated=pack_ids([6]), session="s")
        leaf = _with(leaf, response_number="0123456789abcdef01234567")
        for entry in (root, leaf, other):
            await ledger.record(entry, _prompt(entry))
        export = LedgerExporter(ledger, "t")
        for name, entries in {
            "s": ["root", "leaf", "other"],
            "root": ["root"],
            "leaf": ["root", "leaf"],
            "call_9": ["root"],
            "resp_0123456789abcdef01234567": ["root", "leaf"],
            "chatcmpl-0123456789abcdef01234567": ["root", "leaf"],
            "unknown": [],
        }.items():
            assert list(await export.find(name)) == entries
            assert await LedgerExporter(ledger, "another").find(name) == {}
        await ledger.close()

    asyncio.run(main())


def test_output_of_another_session_is_prompt() -> None:
    """A client may continue a session under another name."""

    async def main() -> None:
        ledger = Ledger(MemoryLedgerStore())
        first = turn("a", suffix=pack_ids([1]), generated=pack_ids([7, 8]), session="one", stop=2)
        second = turn(
            "b",
            parent="a",
            prefix_tokens=3,
            suffix=pack_ids([2]),
            generated=pack_ids([9]),
            session="two",
        )
        for entry in (first, second):
            await ledger.record(entry, _prompt(entry))
        (sample,) = await exported(ledger, "two", "t")
        assert (sample.ids, sample.loss_mask) == ([1, 7, 8, 2, 9, 2], [0, 0, 0, 0, 1, 1])
        (sample,) = await exported(ledger, "one", "t")
        assert (sample.ids, sample.loss_mask) == ([1, 7, 8, 2], [0, 1, 1, 1])
        await ledger.close()

    asyncio.run(main())


def test_logprobs_align_with_their_ids() -> None:
    async def main() -> None:
        ledger = Ledger(MemoryLedgerStore())
        logprobs = pack_logprobs([-0.5, nan, -0.25, -1.0])
        first = turn(
            "a", suffix=pack_ids([1]), generated=pack_ids([7, 8, 9]), session="s", logprobs=logprobs
        )
        second = turn(
            "b",
            parent="a",
            prefix_tokens=4,
            suffix=pack_ids([2, 5]),
            generated=pack_ids([6]),
            session="s",
        )
        for entry in (first, _with(second, forced=((0, 1),))):
            await ledger.record(entry, _prompt(entry))
        (sample,) = await exported(ledger, "s", "t")
        assert sample.ids == [1, 7, 8, 9, 2, 5, 6, 2]
        assert sample.loss_mask == [0, 1, 1, 1, 1, 0, 0, 1]  # 6 was forced
        assert sample.logprobs == [None, -0.5, None, -0.25, -1.0, None, None, None]
        await ledger.close()

    asyncio.run(main())


def test_branches_with_missing_ancestors_are_counted_and_skipped() -> None:
    async def main() -> list[object]:
        ledger = Ledger(MemoryLedgerStore())
        orphan = turn("b", parent="gone", prefix_tokens=3, generated=pack_ids([6]), session="s")
        child = turn("c", parent="b", prefix_tokens=4, suffix=pack_ids([2]), session="s")
        for entry in (orphan, child):
            await ledger._store.put(entry)
        export = LedgerExporter(ledger, "t")
        return [one async for one in export.iter_samples(await export.find("s"))]

    assert asyncio.run(main()) == [MissingBranch("b", 2)]


def test_a_cycle_in_a_damaged_store_ends_the_walk() -> None:
    async def main() -> list[object]:
        ledger = Ledger(MemoryLedgerStore())
        for id, parent in (("a", "b"), ("b", "a"), ("c", "c")):
            await ledger._store.put(turn(id, parent=parent, session="s"))
        export = LedgerExporter(ledger, "t")
        return [one async for one in export.iter_samples(await export.find("s"))]

    assert all(isinstance(one, MissingBranch) for one in asyncio.run(main()))


def test_no_tokenizer_is_loaded() -> None:
    """The export modules do not import a tokenizer: samples are never decoded."""
    code = (
        "import sys, dovetail.ledger.sqlite_store\n"
        "before = set(sys.modules)\n"
        "import dovetail.ledger.export\n"
        "new = set(sys.modules) - before\n"
        "print([name for name in new if 'token' in name or 'template' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def _with(entry: LedgerEntry, **changes: object) -> LedgerEntry:
    return msgspec.structs.replace(entry, **changes)


def _prompt(entry: LedgerEntry) -> "array[int]":
    """Build a prompt of the right length. Recording ignores the ids of the parent's part."""
    return array(TOKEN_ID_TYPECODE, [0] * entry.prefix_tokens) + unpack_ids(entry.suffix)
