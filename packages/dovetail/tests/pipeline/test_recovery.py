"""Turns that end inside reasoning, and blank turns."""

import asyncio
from collections.abc import Callable

import pytest
from recovery_fixture import CALL, CLOSING, REQUEST, USER, Reply, ReplyEngine, Run, texts

from dovetail.pipeline.recovery import RecoveryKind
from dovetail_model import (
    Finish,
    Logprobs,
    OutputFormat,
    ReasoningDelta,
    Sampling,
    TextBlock,
    TextDelta,
    Thinking,
    ToolCallBlock,
    ToolChoice,
    Turn,
)

JSON = OutputFormat("json_schema", {"type": "object", "properties": {}}, strict=True)


def test_an_end_inside_reasoning_closes_it_and_generation_continues() -> None:
    run = Run(["<think>Hm", "It is so."], ("reasoning",))
    message = asyncio.run(run.execute())
    assert texts(message) == ("Hm", "It is so.")
    assert message.finish == "stop"
    first, second = run.engine.requests
    added = run.encode("<think>Hm" + CLOSING)
    assert second.prompt.tolist() == first.prompt.tolist() + added
    assert run.recovered == [("reasoning", len(run.encode(CLOSING)), 1)]
    # The dropped end token, and the one that ended the turn, count as output.
    assert message.usage.output_tokens == len(added) + len(run.encode("It is so.")) + 2


def test_without_the_option_the_turn_ends_inside_reasoning() -> None:
    run = Run(["<think>Hm", "It is so."], ())
    message = asyncio.run(run.execute())
    assert texts(message) == ("Hm", "")
    assert len(run.engine.requests) == 1
    assert run.recovered == []


def test_white_space_before_the_closing_is_not_doubled() -> None:
    run = Run(["<think>Hm\n", "It is so."], ("reasoning",))
    asyncio.run(run.execute())
    text = run.model.tokenizer.decode(run.engine.requests[1].prompt)
    assert text.endswith("<think>Hm\n</think>\n\n")


def test_an_engine_that_does_not_report_the_end_token() -> None:
    run = Run([Reply("<think>Hm", stop=False), "It is so."], ("reasoning",))
    message = asyncio.run(run.execute())
    assert texts(message) == ("Hm", "It is so.")
    assert run.recovered == [("reasoning", len(run.encode(CLOSING)), 0)]


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_the_next_prompt_contains_output_closing_and_continuation(chunk: int) -> None:
    run = Run([Reply("<think>Hm", chunk=chunk), Reply("It is so.", chunk=chunk)], ("reasoning",))

    async def both() -> None:
        message = await run.execute()
        whole = run.engine.requests[0].prompt.tolist()
        whole += run.encode("<think>Hm" + CLOSING + "It is so.<|im_end|>")
        assert (await run.next_prompt(message))[: len(whole)] == whole
        run.restart()
        assert (await run.next_prompt(message))[: len(whole)] == whole
        sample = await run.sample()
        forced = [id for id, chosen in zip(sample.ids, sample.loss_mask, strict=True) if not chosen]
        prompt = run.engine.requests[0].prompt.tolist()
        assert forced == prompt + run.encode(CLOSING)
        assert sum(sample.loss_mask) == len(run.encode("<think>HmIt is so.<|im_end|>"))

    asyncio.run(both())


def test_reasoning_that_the_model_ended_is_not_closed_again() -> None:
    run = Run(["<think>Hm</think>\n\n", "never"], ("reasoning",))
    asyncio.run(run.execute())
    assert len(run.engine.requests) == 1


def test_reasoning_is_closed_once() -> None:
    run = Run(["<think>Hm", "<think>And", "never"], ("reasoning",))
    message = asyncio.run(run.execute())
    assert texts(message)[1] == ""
    assert len(run.engine.requests) == 2


@pytest.mark.parametrize("max_tokens", range(3, 12))
def test_max_tokens_limits_the_whole_turn(max_tokens: int) -> None:
    run = Run(["<think>Hm", "It is so."], ("reasoning",))
    message = asyncio.run(run.execute(sampling=Sampling(max_tokens=max_tokens)))
    assert message.usage.output_tokens <= max_tokens
    assert all(request.max_tokens > 0 for request in run.engine.requests)
    # Three tokens of reasoning, its end token, four of the closing, and one of text.
    assert len(run.engine.requests) == (2 if max_tokens >= 9 else 1)
    if len(run.engine.requests) == 2:
        assert texts(message)[1]


def test_a_budget_and_an_end_inside_reasoning() -> None:
    """The budget ends the first span; the model ends its turn inside a second one."""
    run = Run(["<think>" + "Hm. " * 40, "<think>Or", "It is so."], ("reasoning",))
    message = asyncio.run(run.execute(thinking=Thinking(budget=20)))
    assert texts(message)[1] == "It is so."
    assert len(run.engine.requests) == 3


def test_a_call_inside_reasoning_is_no_defect() -> None:
    run = Run(["<think>Hm" + CALL.format("here"), "never"], ("reasoning", "empty"))
    message = asyncio.run(run.execute())
    assert message.finish == "tool_calls"
    assert len(run.engine.requests) == 1


@pytest.mark.parametrize("stop", [{"stop": ("STOP",)}, {"stop_token_ids": (ord("!"),)}])
def test_stops_of_the_request_are_no_defect(stop: dict[str, object]) -> None:
    run = Run([Reply("<think>Hm!"), "never"], ("reasoning",))
    if "stop" in stop:
        run = Run(["<think>Hm</think>\n\nSTOP", "never"])
    message = asyncio.run(run.execute(sampling=Sampling(**stop)))  # type: ignore[arg-type]
    assert len(run.engine.requests) == 1
    assert texts(message)[1] == ""


def test_stop_strings_hold_in_the_continuation() -> None:
    run = Run(["<think>Hm", "It is so. STOP. Never."], ("reasoning",))
    message = asyncio.run(run.execute(sampling=Sampling(stop=("STOP",))))
    assert texts(message) == ("Hm", "It is so. ")
    assert message.finish == "stop_sequence"


def test_the_grammar_of_the_rest_constrains_the_continuation() -> None:
    run = Run(["<think>Hm", "{}"], ("reasoning",), capabilities={"constraints": ("gbnf",)})
    asyncio.run(run.execute(output=JSON))
    first, second = run.engine.requests
    assert first.constraint is not None
    assert second.constraint is not None
    assert "think" not in second.constraint.text


def test_a_required_call_constrains_the_continuation() -> None:
    run = Run(
        ["<think>Hm", CALL.format("here")], ("reasoning",), capabilities={"constraints": ("gbnf",)}
    )
    message = asyncio.run(run.execute(tool_choice=ToolChoice("required")))
    assert message.finish == "tool_calls"
    constraint = run.engine.requests[1].constraint
    assert constraint is not None
    assert "look" in constraint.text


def test_constrained_text_before_reasoning_is_not_continued() -> None:
    """A grammar cannot be resumed in its middle."""
    run = Run(["{}<think>Hm", "never"], ("reasoning",), capabilities={"constraints": ("gbnf",)})
    asyncio.run(run.execute(output=JSON))
    assert len(run.engine.requests) == 1


def test_logprobs_omit_the_dropped_end_token() -> None:
    run = Run(["<think>Hm", "So."], ("reasoning",))

    async def execute() -> None:
        await run.execute(sampling=Sampling(logprobs=0))
        shown = [one.token for e in run.events() if isinstance(e, Logprobs) for one in e.tokens]
        assert "".join(shown) == "<think>HmSo.<|im_end|>"
        sample = await run.sample()
        assert sample.logprobs is not None
        known = [value is not None for value in sample.logprobs]
        assert known == [bool(chosen) for chosen in sample.loss_mask]

    asyncio.run(execute())


def test_every_choice_is_recovered() -> None:
    run = Run([*["<think>Hm"] * 3, *["It is so."] * 3], ("reasoning",))
    asyncio.run(run.execute(sampling=Sampling(n=3)))
    assert [texts(run.message(at)) for at in range(3)] == [("Hm", "It is so.")] * 3
    assert len(run.recovered) == 3


def test_a_disconnect_cancels_the_continuation() -> None:
    run = Run(["<think>Hm", "never"], ("reasoning",))
    run.engine.pauses_in = 2

    async def disconnect() -> None:
        task = asyncio.create_task(run.execute())
        await run.engine.paused.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.engine.cancelled
        entry = await run.stored()
        assert entry.finish == "broken"
        assert entry.forced

    asyncio.run(disconnect())


# Blank turns


BLANK: dict[str, Callable[[], Run]] = {
    "nothing": lambda: Run(["", "Yes."], ("empty",)),
    "white space": lambda: Run(["\n \n", "Yes."], ("empty",)),
    "no end token": lambda: Run([Reply("\n", stop=False), "Yes."], ("empty",)),
    "one delta": lambda: Run([Reply("\n\n", chunk=9), Reply("Yes.", chunk=9)], ("empty",)),
}


@pytest.mark.parametrize("name", BLANK)
def test_a_blank_turn_is_sampled_once_more(name: str) -> None:
    run = BLANK[name]()

    async def execute() -> None:
        message = await run.execute()
        assert texts(message) == ("", "Yes.")
        first, second = run.engine.requests
        assert first.prompt == second.prompt
        assert (first.sampling.min_tokens, second.sampling.min_tokens) == (0, 1)
        dropped = len(run.engine.outputs[0])
        assert run.recovered == [("empty", 0, dropped)]
        assert message.usage.output_tokens == len(run.encode("Yes.")) + 1 + dropped
        entry = await run.stored()
        assert run.model.tokenizer.decode(list(entry.generated[::4])) == "Yes."
        whole = first.prompt.tolist() + run.encode("Yes.<|im_end|>")
        assert (await run.next_prompt(message))[: len(whole)] == whole

    asyncio.run(execute())


def test_a_blank_turn_after_reasoning_keeps_the_reasoning() -> None:
    """The reasoning was sent already, so only what follows it is sampled once more."""
    run = Run(["<think>Hm</think>\n\n\n", "\n\nYes."], ("empty",))

    async def execute() -> None:
        message = await run.execute()
        assert texts(message) == ("Hm", "Yes.")
        first, second = run.engine.requests
        carried = second.prompt[len(first.prompt) :]
        assert run.model.tokenizer.decode(carried).rstrip() == "<think>Hm</think>"
        shown = [event.text for event in run.events() if isinstance(event, ReasoningDelta)]
        assert "".join(shown) == "Hm"
        whole = second.prompt.tolist() + run.encode("\n\nYes.<|im_end|>")
        assert (await run.next_prompt(message))[: len(whole)] == whole
        assert not (await run.stored()).forced

    asyncio.run(execute())


def test_a_closed_reasoning_followed_by_nothing_uses_both_recoveries() -> None:
    run = Run(["<think>Hm", "", "Yes."], ("reasoning", "empty"))

    async def execute() -> None:
        message = await run.execute()
        assert texts(message) == ("Hm", "Yes.")
        assert [kind for kind, _, _ in run.recovered] == ["reasoning", "empty"]
        sample = await run.sample()
        assert sum(sample.loss_mask) == len(run.encode("<think>HmYes.<|im_end|>"))

    asyncio.run(execute())


def test_a_turn_that_stays_blank_is_returned() -> None:
    run = Run(["\n", "\n\n", "never"], ("empty",))
    message = asyncio.run(run.execute())
    assert len(run.engine.requests) == 2
    assert texts(message)[1].strip() == ""
    assert isinstance(run.events()[-1], Finish)


@pytest.mark.parametrize(
    ("reply", "finish"),
    [
        ("Yes.", "stop"),
        (CALL.format("here"), "tool_calls"),
        (Reply("\n", finish="length"), "context_window"),
        ("<tool", "stop"),
    ],
    ids=["text", "call", "length", "half a marker"],
)
def test_other_turns_are_not_sampled_again(reply: Reply | str, finish: str) -> None:
    run = Run([reply, "never"], ("empty",))
    assert asyncio.run(run.execute()).finish == finish
    assert len(run.engine.requests) == 1


def test_text_is_sent_without_delay_after_its_first_visible_character() -> None:
    run = Run(["\n\nYes,itis."], ("empty",))
    asyncio.run(run.execute())
    batches = [
        "".join(event.text for event in events if isinstance(event, TextDelta))
        for _, events in run.batches
    ]
    assert [text for text in batches if text] == ["\n\nY", *"es,itis."]


def test_an_open_reasoning_is_left_to_its_own_recovery() -> None:
    run = Run(["<think>Hm", "never"], ("empty",))
    asyncio.run(run.execute())
    assert len(run.engine.requests) == 1


def test_the_second_sample_has_another_seed() -> None:
    run = Run(["", "Yes."], ("empty",))
    asyncio.run(run.execute(sampling=Sampling(seed=7)))
    first, second = (request.sampling.seed for request in run.engine.requests)
    assert first == 7
    assert second not in (None, *range(7, 23))


@pytest.mark.parametrize(("min_tokens", "requests"), [(True, 2), (False, 1)])
def test_a_greedy_turn_is_sampled_again_only_if_it_can_differ(
    min_tokens: bool, requests: int
) -> None:
    features = frozenset({"min_tokens"} if min_tokens else ())
    run = Run(["", "Yes."], ("empty",), capabilities={"sampling": features})
    asyncio.run(run.execute(sampling=Sampling(temperature=0)))
    assert len(run.engine.requests) == requests


def test_dropped_tokens_count_towards_max_tokens() -> None:
    run = Run(["\n\n\n", "Yes."], ("empty",))
    message = asyncio.run(run.execute(sampling=Sampling(max_tokens=6)))
    assert message.usage.output_tokens == 6
    assert texts(message)[1] == "Ye"
    run = Run(["\n\n\n", "Yes."], ("empty",))
    asyncio.run(run.execute(sampling=Sampling(max_tokens=4)))
    assert len(run.engine.requests) == 1


def test_a_blank_turn_keeps_its_grammar() -> None:
    run = Run(["<think>Hm</think>", "{}"], ("empty",), capabilities={"constraints": ("gbnf",)})
    asyncio.run(run.execute(output=JSON))
    constraint = run.engine.requests[1].constraint
    assert constraint is not None
    assert "think" not in constraint.text


@pytest.mark.parametrize("kinds", [(), ("reasoning", "empty", "loop")])
def test_ordinary_turns_are_the_same(kinds: tuple[RecoveryKind, ...]) -> None:
    text = "<think>Hm</think>\n\nI look." + CALL.format("here") + CALL.format("there")
    run = Run([text], kinds)
    message = asyncio.run(run.execute())
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    assert [call.arguments for call in calls] == ['{"at": "here"}', '{"at": "there"}']
    assert texts(message) == ("Hm", "I look.")
    assert message.usage.output_tokens == len(run.encode(text)) + 1
    assert run.recovered == []


def test_an_engine_with_recovery_gets_one_request_per_ordinary_turn() -> None:
    run = Run(["Yes."])
    asyncio.run(run.execute(REQUEST, turns=(USER, Turn("user", (TextBlock("Well?"),)))))
    assert isinstance(run.engine, ReplyEngine)
    assert len(run.engine.requests) == 1
