"""Random events for tests: possible model outputs, as far as a chat can carry them."""

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Failure,
    Finish,
    FinishReason,
    Logprobs,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
    TokenLogprob,
    Usage,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
PIECES = st.lists(TEXTS.filter(bool), min_size=1, max_size=3)
REASONS: list[FinishReason] = ["stop", "length", "context_window", "refusal"]


def request_body(**fields: object) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello."}], **fields}
    return msgspec.json.encode(body)


@st.composite
def scripts(draw: st.DrawFn, *, failing: bool = False) -> list[Event]:
    """Draw one output: spans and calls in any order, possibly a truncated last call, an end."""
    events: list[Event] = [Usage(input_tokens=7)]
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "reasoning", "call", "note"]), max_size=6)):
        if kind == "call":
            events += draw(_call(calls))
            calls += 1
        else:
            events += draw(_NOTES if kind == "note" else _span(kind))
    if failing and draw(st.booleans()):
        return [*events, Failure("engine", "It broke.")]
    finish = draw(_finish(events))
    usage = Usage(7, draw(st.integers(0, 99)), draw(st.integers(0, 7)), draw(st.integers(0, 9)))
    return [*events, usage, finish]


def _span(kind: str) -> SearchStrategy[list[Event]]:
    if kind == "text":
        return PIECES.map(lambda texts: [*map(TextDelta, texts), SpanEnd("text")])
    return PIECES.map(lambda texts: [*map(ReasoningDelta, texts), SpanEnd("reasoning")])


@st.composite
def _call(draw: st.DrawFn, index: int) -> list[Event]:
    custom = draw(st.booleans())
    name = draw(st.sampled_from(["look", "näme", 'a"b']))
    pieces = draw(st.lists(TEXTS.filter(bool), max_size=3))
    return [
        CallOpen(index, name, f"call_{index}x", custom=custom),
        *(CallArgs(index, piece) for piece in pieces),
        CallClose(index),
    ]


@st.composite
def _finish(draw: st.DrawFn, events: list[Event]) -> Finish:
    """Draw a matching end: only a limit truncates a call. May change `events`."""
    calls = any(isinstance(event, CallOpen) for event in events)
    if calls and isinstance(events[-1], CallClose) and draw(st.booleans()):
        events.pop()
        return Finish("length")
    if calls:
        return Finish("tool_calls")
    if draw(st.booleans()):
        return Finish("stop_sequence", draw(TEXTS))
    return Finish(draw(st.sampled_from(REASONS)))


_LOGPROBS = st.builds(
    TokenLogprob,
    token=TEXTS,
    logprob=st.floats(-50, 0) | st.just(float("-inf")),
    top=st.lists(st.tuples(TEXTS, st.floats(-50, 0)), max_size=3).map(tuple),
)
_NOTES: SearchStrategy[list[Event]] = st.one_of(
    st.just([Diagnostic("odd")]),
    st.just([SpanEnd("frame")]),
    st.lists(_LOGPROBS, min_size=1, max_size=2).map(lambda tokens: [Logprobs(tuple(tokens))]),
)
