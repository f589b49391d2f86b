"""A single delta that continues a run: the same bytes as on the slow path, at little cost."""

import sys
from collections.abc import Callable, Sequence
from itertools import product
from types import FrameType

import pytest
from golden_transcripts import CODECS, CountingIds, clock
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Failure,
    Finish,
    Hints,
    Logprobs,
    ReasoningDelta,
    Request,
    Sampling,
    SpanEnd,
    TextDelta,
    Thinking,
    TokenLogprob,
    Usage,
)
from dovetail_protocols import COMPLETIONS
from dovetail_protocols.chat.decode import ChatEcho
from dovetail_protocols.codec import StreamEncoder

ALL = {**CODECS, "completions": COMPLETIONS}
TEXTS = st.sampled_from(["", " ", "\n", "a", 'say "é"', "\ud83d", "{", "\u2028"])
CALLS = st.integers(0, 2)
CHOICES = st.integers(0, 1)
DELTAS: st.SearchStrategy[Event] = (
    st.builds(TextDelta, TEXTS)
    | st.builds(ReasoningDelta, TEXTS)
    | st.builds(CallArgs, CALLS, TEXTS)
)
OTHERS: st.SearchStrategy[Event] = (
    st.builds(SpanEnd, st.sampled_from(["text", "reasoning", "frame"]))
    | st.builds(CallOpen, CALLS, st.just("look"), st.just("id"), st.none(), st.booleans())
    | st.builds(CallClose, CALLS)
    | st.just(Logprobs((TokenLogprob("a", -1.0),)))
    | st.just(Usage(3, 4))
    | st.just(Diagnostic("odd"))
    | st.just(Finish("stop"))
    | st.just(Failure("engine", "gone"))
)
RUNS = st.lists(DELTAS | DELTAS | OTHERS, max_size=12)
REQUESTS = st.builds(
    Request,
    model=st.just("m"),
    turns=st.just(()),
    sampling=st.builds(Sampling, logprobs=st.sampled_from([None, 1]), n=st.just(2)),
    thinking=st.builds(Thinking, summary=st.sampled_from([None, "auto"])),
    hints=st.builds(Hints, dispatch=st.sampled_from([frozenset(), frozenset({"tools"})])),
    echo=st.sampled_from([None, ChatEcho(segments=True)]),
)

OPENED: dict[str, tuple[Sequence[Event], Callable[[str], Event]]] = {
    "text": ([TextDelta("a")], TextDelta),
    "reasoning": ([ReasoningDelta("a")], ReasoningDelta),
    "call": ([CallOpen(0, "look"), CallArgs(0, "{")], lambda text: CallArgs(0, text)),
}
"""What opens a run, and a delta that goes on with it."""

BETWEEN: list[list[Event]] = [
    [],
    [SpanEnd("text")],
    [SpanEnd("reasoning")],
    [CallClose(0)],
    [CallOpen(1, "look")],
    [Finish("stop")],
    [Failure("engine", "gone")],
]
LAST: list[Event] = [
    *(TextDelta(text) for text in ("", " ", "b")),
    *(ReasoningDelta(text) for text in ("", " ", "b")),
    *(CallArgs(index, text) for index in (0, 1, 2) for text in ("", " ", "b")),
]


def stream(api: str, request: Request) -> StreamEncoder:
    return ALL[api].stream(request, CountingIds(), clock)


@pytest.mark.parametrize("api", ALL)
@settings(deadline=None, max_examples=300)
@given(request_=REQUESTS, batches=st.lists(st.tuples(CHOICES, RUNS), max_size=6))
def test_single_event_is_encoded_as_in_a_batch(
    api: str, request_: Request, batches: list[tuple[int, list[Event]]]
) -> None:
    """A batch takes the slow path: only a single event can continue a run."""
    single, in_batch = stream(api, request_), stream(api, request_)
    for choice, events in batches:
        for event in events:
            expected = in_batch.encode([event, Diagnostic("says nothing")], choice)
            assert single.encode([event], choice) == expected


@pytest.mark.parametrize("api", ALL)
def test_other_events_do_not_continue_a_run(api: str) -> None:
    """Every way to open a run, every event after it, and a delta of this or another choice."""
    request = Request(model="m", turns=(), sampling=Sampling(n=2))
    for before, between, last, choice in product(OPENED.values(), BETWEEN, LAST, (0, 1)):
        single, in_batch = stream(api, request), stream(api, request)
        for encoder in single, in_batch:
            encoder.encode([*before[0], *between])
        expected = in_batch.encode([last, Diagnostic("says nothing")], choice)
        assert single.encode([last], choice) == expected, (before[0], between, last, choice)


@pytest.mark.parametrize(("api", "opened"), [*product(CODECS, OPENED), ("completions", "text")])
def test_continuing_a_run_takes_two_calls(api: str, opened: str) -> None:
    before, delta = OPENED[opened]
    encoder = stream(api, Request(model="m", turns=()))
    encoder.encode(before)
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    batch = [delta(" the")]
    sys.setprofile(note)
    try:
        encoded = encoder.encode(batch)
    finally:
        sys.setprofile(None)
    assert called == ["encode", "frame"]
    assert b'" the"' in encoded
