"""Loops: a repeated tail of the output, and identical calls with identical results."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from recovery_fixture import CALL, CLOSING, LOOK, REQUEST, USER, Reply, Run, texts

from dovetail.ledger.entry import FINISH_REPEATED
from dovetail.prompt.loop_notices import MAX_PERIOD_CALLS, find_repeated_calls
from dovetail_model import (
    Message,
    Request,
    Sampling,
    TextBlock,
    Thinking,
    ToolCallBlock,
    ToolChoice,
    ToolResultBlock,
    Turn,
)

NOTICE = "The server ended your previous output because it repeated itself."
CALLS_NOTICE = "You made the same call 3 times"
SENTENCE = "Let me look again. "


def _calls(message: Message) -> list[ToolCallBlock]:
    return [block for block in message.blocks if isinstance(block, ToolCallBlock)]


@pytest.mark.parametrize("chunk", [1, 7, 200])
def test_a_repeated_tail_ends_the_turn(chunk: int) -> None:
    run = Run([Reply("I begin. " + SENTENCE * 400, chunk=chunk)], ("loop",))

    async def execute() -> None:
        message = await run.execute()
        _, text = texts(message)
        assert text.startswith("I begin. " + SENTENCE * 10)
        assert 300 < len(text) < 300 + 9 + 61 + 2 * chunk + len(SENTENCE)
        assert message.finish == "stop"
        assert run.recovered == [("loop", 0, 0)]
        assert message.usage.output_tokens == len(run.encode(text))
        assert (await run.stored()).finish == FINISH_REPEATED
        assert (await run.stored()).stop is None

    asyncio.run(execute())


def test_without_the_option_a_loop_goes_on() -> None:
    run = Run([SENTENCE * 100], ("reasoning", "empty"))
    assert texts(asyncio.run(run.execute()))[1].strip() == (SENTENCE * 100).strip()


def test_the_next_prompt_contains_the_output_and_a_notice_at_its_end() -> None:
    run = Run([SENTENCE * 100, "Well then."], ("loop",))

    async def execute() -> None:
        message = await run.execute()
        whole = run.engine.requests[0].prompt.tolist() + run.encode(texts(message)[1])
        prompt = await run.next_prompt(message)
        assert prompt[: len(whole)] == whole
        tail = run.model.tokenizer.decode(prompt[len(whole) :])
        assert f"Why?\n\n{NOTICE}" in tail
        run.restart()
        assert await run.next_prompt(message) == prompt

        # The notice stays where it is in all later prompts.
        turns = (USER, Turn("assistant", message.blocks), Turn("user", (TextBlock("Why?"),)))
        second = await run.execute(turns=turns)
        assert run.engine.requests[1].prompt.tolist() == prompt
        later = (*turns, Turn("assistant", second.blocks), Turn("user", (TextBlock("And?"),)))
        run.restart()
        prepared = await run.preparer.prepare(msgspec.structs.replace(REQUEST, turns=later))
        whole = prompt + run.encode("Well then.<|im_end|>")
        assert prepared.prompt.ids[: len(whole)].tolist() == whole
        assert NOTICE not in run.model.tokenizer.decode(prepared.prompt.ids[len(whole) :])

    asyncio.run(execute())


def test_the_notice_is_reported() -> None:
    run = Run([SENTENCE * 100], ("loop",))

    async def execute() -> None:
        message = await run.execute()
        turns = (USER, Turn("assistant", message.blocks), Turn("user", (TextBlock("Why?"),)))
        prepared = await run.preparer.prepare(msgspec.structs.replace(REQUEST, turns=turns))
        assert "loop_notice" in prepared.prompt.notes

    asyncio.run(execute())


def test_a_loop_inside_reasoning_ends_the_turn() -> None:
    run = Run(["<think>" + SENTENCE * 100, "never"], ("loop",))
    message = asyncio.run(run.execute())
    assert texts(message)[1] == ""
    assert message.finish == "stop"
    assert len(run.engine.requests) == 1


def test_a_loop_inside_reasoning_is_closed_if_reasoning_is_recovered() -> None:
    run = Run(["<think>" + SENTENCE * 100, "It is so."], ("reasoning", "loop"))

    async def execute() -> None:
        message = await run.execute()
        _, text = texts(message)
        assert text == "It is so."
        assert run.recovered == [("loop", len(run.encode(CLOSING)), 0)]
        first, second = run.engine.requests
        assert second.prompt[: len(first.prompt)] == first.prompt
        assert run.model.tokenizer.decode(second.prompt).endswith(CLOSING)
        whole = second.prompt.tolist() + run.encode("It is so.<|im_end|>")
        assert (await run.next_prompt(message))[: len(whole)] == whole
        assert (await run.stored()).finish == "stop"

    asyncio.run(execute())


def test_a_loop_inside_arguments_ends_as_a_truncated_call() -> None:
    """Arguments may be monotonous files, so the repeated tail must be four times as long."""
    run = Run(["I write." + CALL.format("0, " * 2000)], ("loop",))
    message = asyncio.run(run.execute())
    (call,) = _calls(message)
    assert not call.complete
    assert message.finish == "length"
    assert 4 * 300 < len(call.arguments) < 4 * 300 + 200


def test_a_monotonous_file_in_arguments_is_no_loop() -> None:
    run = Run([CALL.format("0, " * 300)], ("loop",))
    message = asyncio.run(run.execute())
    assert message.finish == "tool_calls"
    assert run.recovered == []


@pytest.mark.parametrize("between", ["", "\n", "I look. "])
@pytest.mark.parametrize("chunk", [1, 5])
def test_repeated_calls_end_after_a_complete_call(between: str, chunk: int) -> None:
    text = "I look." + (CALL.format("here") + between) * 100
    run = Run([Reply(text, chunk=chunk)], ("loop",))

    async def execute() -> None:
        message = await run.execute()
        calls = _calls(message)
        assert 3 < len(calls) < 20
        assert all(call.complete for call in calls)
        assert message.finish == "tool_calls"
        entry = await run.stored()
        assert entry.finish == FINISH_REPEATED
        assert message.usage.output_tokens == len(entry.generated) // 4
        results = tuple(ToolResultBlock(call.id, (TextBlock("x"),)) for call in calls)
        turns = (USER, Turn("assistant", message.blocks), Turn("tool", results))
        prompt = (await run.preparer.prepare(msgspec.structs.replace(REQUEST, turns=turns))).prompt
        whole = len(run.engine.requests[0].prompt) + len(entry.generated) // 4
        assert prompt.exact_turns == {1}
        assert NOTICE in run.model.tokenizer.decode(prompt.ids[whole:])

    asyncio.run(execute())


def test_parallel_calls_with_different_arguments_are_no_loop() -> None:
    run = Run(["".join(CALL.format(f"line {at}") for at in range(60))], ("loop",))
    message = asyncio.run(run.execute())
    assert len(_calls(message)) == 60
    assert run.recovered == []


def test_a_loop_ends_every_choice_by_itself() -> None:
    run = Run([SENTENCE * 100, "It is so."], ("loop",))
    asyncio.run(run.execute(sampling=Sampling(n=2)))
    assert texts(run.message(1))[1] == "It is so."
    assert len(run.recovered) == 1


def test_a_budget_ends_reasoning_before_the_loop_is_found() -> None:
    run = Run(["<think>" + SENTENCE * 100, "It is so."], ("loop",))
    message = asyncio.run(run.execute(thinking=Thinking(budget=50)))
    assert texts(message)[1] == "It is so."
    assert run.recovered == []


# Identical calls with identical results


def _step(number: int, at: str, result: str, text: str = "") -> list[Turn]:
    call = ToolCallBlock(f"c{number}", "look", f'{{"at": "{at}"}}')
    blocks = (TextBlock(text), call) if text else (call,)
    return [
        Turn("assistant", blocks),
        Turn("tool", (ToolResultBlock(call.id, (TextBlock(result),)),)),
    ]


def _history(steps: Sequence[tuple[str, str]]) -> tuple[Turn, ...]:
    turns = [USER]
    for number, (at, result) in enumerate(steps):
        turns += _step(number, at, result, f"Step {number}.")
    return tuple(turns)


def _request(steps: Sequence[tuple[str, str]]) -> Request:
    return msgspec.structs.replace(REQUEST, turns=_history(steps))


async def _tail(run: Run, request: Request) -> str:
    prompt = (await run.preparer.prepare(request)).prompt
    return run.model.tokenizer.decode(prompt.ids[-400:])


def test_the_third_identical_result_carries_a_notice() -> None:
    run = Run([], ("loop",))

    async def prepare() -> None:
        for times in range(1, 8):
            tail = await _tail(run, _request([("here", "nothing")] * times))
            assert ("You made the same call" in tail) == (times % 3 == 0), times

    asyncio.run(prepare())


def test_the_notice_of_calls_stays_in_later_prompts() -> None:
    run = Run([CALL.format("here")] * 8, ("loop",))

    async def execute() -> None:
        turns: tuple[Turn, ...] = (USER,)
        for _ in range(5):
            message = await run.execute(turns=turns)
            (call,) = _calls(message)
            result = Turn("tool", (ToolResultBlock(call.id, (TextBlock("nothing"),)),))
            turns = (*turns, Turn("assistant", message.blocks), result)
        before = run.engine.requests[-2].prompt.tolist()
        last = run.engine.requests[-1].prompt.tolist()
        assert run.model.tokenizer.decode(last).count(CALLS_NOTICE) == 1
        assert last[: len(before)] == before
        run.restart()
        request = msgspec.structs.replace(REQUEST, turns=turns)
        prompt = (await run.preparer.prepare(request)).prompt.ids.tolist()
        assert prompt[: len(last)] == last

    asyncio.run(execute())


def test_calls_that_never_end_are_ended_by_the_server() -> None:
    run = Run(["never"], ("loop",))

    async def execute() -> None:
        request = _request([("here", "nothing")] * 12)
        message = await run.execute(request)
        assert run.engine.requests == []
        assert message.finish == "stop"
        assert "12 times" in texts(message)[1]
        inserted = len(run.encode(texts(message)[1]))
        assert message.usage.output_tokens == inserted
        assert run.recovered == [("loop", inserted, 0)]
        sample = await run.sample()
        assert sum(sample.loss_mask) == 0
        turns = (*request.turns, Turn("assistant", message.blocks), USER)
        prompt = (await run.preparer.prepare(msgspec.structs.replace(request, turns=turns))).prompt
        assert len(request.turns) in prompt.exact_turns
        assert not find_repeated_calls(turns)

    asyncio.run(execute())


def test_a_required_call_is_not_replaced_by_text() -> None:
    run = Run([CALL.format("here")], ("loop",), capabilities={"constraints": ("gbnf",)})
    request = _request([("here", "nothing")] * 12)
    asyncio.run(run.execute(request, tool_choice=ToolChoice("required")))
    assert len(run.engine.requests) == 1


@pytest.mark.parametrize("period", range(1, MAX_PERIOD_CALLS + 1))
def test_calls_that_alternate_are_found(period: int) -> None:
    steps = [(f"place {at % period}", "nothing") for at in range(3 * period)]
    found = find_repeated_calls(_history(steps))
    assert found is not None
    assert (found.period, found.times) == (period, 3)


@pytest.mark.parametrize(
    "steps",
    [
        [("status", f"{at} % done") for at in range(30)],
        [("status", "running")] * 2 + [("status", "done")],
        [(f"line {at}", "ok") for at in range(30)],
        [step for at in range(20) for step in ((f"edit {at}", "ok"), ("test", "1 failed"))],
        [("test", "ok"), ("a", "x"), ("test", "ok"), ("b", "y"), ("test", "ok"), ("c", "z")],
    ],
    ids=["polling", "polling that ends", "reading", "edit and test", "test in between"],
)
def test_calls_with_progress_are_no_loop(steps: list[tuple[str, str]]) -> None:
    run = Run([], ("loop",))
    for end in range(1, len(steps) + 1):
        tail = asyncio.run(_tail(run, _request(steps[:end])))
        assert "You made the same call" not in tail


def test_a_user_message_starts_the_count_again() -> None:
    turns = (*_history([("here", "nothing")] * 2), *_history([("here", "nothing")]))
    assert find_repeated_calls(turns) is None


def test_parallel_calls_are_compared_together() -> None:
    def step(number: int, second: str) -> list[Turn]:
        ids = (f"a{number}", f"b{number}")
        calls = tuple(ToolCallBlock(id, LOOK.name, "{}") for id in ids)
        results = tuple(
            ToolResultBlock(id, (TextBlock(text),))
            for id, text in zip(ids, ("same", second), strict=True)
        )
        return [Turn("assistant", calls), Turn("tool", results[:1]), Turn("tool", results[1:])]

    same = [turn for number in range(4) for turn in step(number, "same")]
    changing = [turn for number in range(4) for turn in step(number, str(number))]
    found = find_repeated_calls((USER, *same))
    assert found is not None
    assert found.times == 4
    assert find_repeated_calls((USER, *changing)) is None
