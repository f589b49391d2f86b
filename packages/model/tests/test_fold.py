"""Folding events into a message."""

import msgspec
import pytest

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Failure,
    Finish,
    Fold,
    Message,
    ReasoningBlock,
    ReasoningDelta,
    SpanEnd,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    Usage,
    fold,
)

CALL: list[Event] = [
    CallOpen(0, "f", raw="<call>"),
    CallArgs(0, '{"a"', '{"a"'),
    CallArgs(0, ": 1}", ": 1}"),
]


def test_blocks_are_in_output_order() -> None:
    message = fold(
        [
            ReasoningDelta("First", "<think>First"),
            SpanEnd("reasoning", "</think>"),
            *CALL,
            CallClose(0, "</call>"),
            SpanEnd("frame", "\n"),
            ReasoningDelta("then", "<think>then"),
            SpanEnd("reasoning", "</think>"),
            TextDelta("do", "do"),
            TextDelta("ne", "ne"),
            SpanEnd("text"),
        ]
    )
    assert message.blocks == (
        ReasoningBlock("First", raw="<think>First</think>"),
        ToolCallBlock("call_0", "f", '{"a": 1}', raw='<call>{"a": 1}</call>\n'),
        ReasoningBlock("then", raw="<think>then</think>"),
        TextBlock("done", raw="done"),
    )
    assert message.raw == "".join(block.raw for block in message.blocks)
    assert [block.type for block in message.blocks] == [
        "reasoning",
        "tool_call",
        "reasoning",
        "text",
    ]


def test_delta_after_a_span_end_starts_a_new_block() -> None:
    message = fold([TextDelta("a"), SpanEnd("text"), TextDelta("b"), TextDelta("c")])
    assert [block.text for block in message.blocks if block.type == "text"] == ["a", "bc"]


FINISHES: list[tuple[str, list[Event], str]] = [
    ("no_finish_event", [TextDelta("a")], "stop"),
    ("complete_call", [*CALL, CallClose(0)], "tool_calls"),
    ("truncated_call", CALL, "length"),
    (
        "last_call_truncated",
        [*CALL, CallClose(0), CallOpen(1, "g"), CallArgs(1, "{")],
        "length",
    ),
    (
        "broken_call_before_a_complete_one",
        [*CALL, CallOpen(1, "g"), CallArgs(1, "{}"), CallClose(1)],
        "tool_calls",
    ),
    ("finish_event", [*CALL, CallClose(0), Finish("stop_sequence", "END")], "stop_sequence"),
    ("failure", [TextDelta("a"), Failure("engine", "gone")], "error"),
]


@pytest.mark.parametrize(
    ("events", "reason"), [row[1:] for row in FINISHES], ids=[row[0] for row in FINISHES]
)
def test_finish_reason(events: list[Event], reason: str) -> None:
    assert fold(events).finish == reason


def test_truncated_call_is_marked() -> None:
    call = fold(CALL).blocks[0]
    assert isinstance(call, ToolCallBlock)
    assert (call.arguments, call.complete) == ('{"a": 1}', False)


def test_call_ids_come_from_the_caller_or_the_model() -> None:
    events: list[Event] = [
        CallOpen(0, "f", id="own"),
        CallClose(0),
        CallOpen(1, "f"),
        CallClose(1),
    ]
    ids = [block.id for block in fold(events).blocks if block.type == "tool_call"]
    assert ids == ["own", "call_1"]
    named = fold(events, new_id=lambda opened: f"toolu_{opened.index}{opened.id}")
    assert [b.id for b in named.blocks if b.type == "tool_call"] == ["toolu_0own", "toolu_1None"]


def test_diagnostics_are_collected_and_the_last_usage_is_used() -> None:
    message = fold([Usage(5, 1), Diagnostic("bare_key", "hermes"), Usage(5, 9, cached_tokens=3)])
    assert message.usage == Usage(5, 9, cached_tokens=3)
    assert message.usage.total_tokens == 14
    assert message.diagnostics == (Diagnostic("bare_key", "hermes"),)


def test_raw_text_without_any_block_is_retained() -> None:
    assert fold([SpanEnd("frame", "\n\n")]) == Message(raw="\n\n")


def test_raw_text_before_the_first_block_belongs_to_it() -> None:
    message = fold([SpanEnd("frame", "\n"), TextDelta("a", "a")])
    assert message.blocks == (TextBlock("a", raw="\na"),)


def test_arguments_of_an_unknown_call_raise() -> None:
    with pytest.raises(LookupError):
        Fold().add(CallArgs(3, "x"))
    with pytest.raises(LookupError):
        fold([CallOpen(0, "f"), CallArgs(3, "x")])


def test_long_message_can_be_read_at_any_time() -> None:
    folding = Fold()
    text = ""
    for number in range(300):
        text += str(number)
        folding.add(TextDelta(str(number), f"<{number}>"))
        if number % 7 == 0:
            assert folding.message().blocks[0].text == text  # type: ignore[union-attr]
    folding.add(SpanEnd("text", "</>"))
    assert folding.message().raw == "".join(f"<{n}>" for n in range(300)) + "</>"


def test_arguments_of_several_calls_may_alternate() -> None:
    events: list[Event] = [CallOpen(0, "f"), CallOpen(1, "g")]
    events += [CallArgs(number // 3 % 2, str(number), str(number)) for number in range(200)]
    blocks = fold([*events, CallClose(1), CallClose(0)]).blocks
    for call, block in enumerate(blocks):
        assert isinstance(block, ToolCallBlock)
        assert block.arguments == "".join(str(n) for n in range(200) if n // 3 % 2 == call)


def test_message_round_trips_through_json() -> None:
    message = fold([ReasoningDelta("a"), *CALL, CallClose(0), Finish("tool_calls")])
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


def test_events_round_trip_with_their_type() -> None:
    others: list[Event] = [TextDelta("a"), Usage(), Finish("stop"), Failure("internal", "x")]
    decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
    for event in CALL + others:
        encoded = msgspec.json.encode(event)
        assert msgspec.json.decode(encoded)["type"] == event.type
        assert decoder.decode(encoded) == event


def test_seal_stays_with_its_reasoning() -> None:
    message = fold([ReasoningDelta("a"), SpanEnd("reasoning", seal="s"), SpanEnd("frame", "\n")])
    assert message.blocks == (ReasoningBlock("a", seal="s", raw="\n"),)
