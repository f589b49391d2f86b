"""An explicit checker of the event sequence, on the golden cases and on random scripts."""

from typing import Any

import msgspec
import pytest
from golden_transcripts import CountingIds, Transcript, clock, transcripts
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Failure,
    Finish,
    Logprobs,
    ReasoningDelta,
    Request,
    SpanEnd,
    TextDelta,
    TokenLogprob,
    Usage,
    fold,
)
from dovetail_protocols import SseReader
from dovetail_protocols.responses import CODEC

ENDS = {"response.completed", "response.incomplete", "response.failed"}
DELTAS = {
    "response.output_text": ("message", "text"),
    "response.reasoning_text": ("reasoning", "text"),
    "response.reasoning_summary_text": ("reasoning", "text"),
    "response.function_call_arguments": ("function_call", "arguments"),
    "response.custom_tool_call_input": ("custom_tool_call", "input"),
}


class Channel:
    """One stream of deltas inside an item: open, then done once with the complete text."""

    def __init__(self) -> None:
        self.text = ""
        self.done = False


class Checker:
    """Reads a stream and asserts every rule of its order."""

    def __init__(self) -> None:
        self.number = 0
        self.items: list[dict[str, Any]] = []
        self.channels: list[dict[str, Channel]] = []
        self.finished: dict[int, dict[str, Any]] = {}
        self.end: dict[str, Any] | None = None

    def read(self, stream: bytes) -> "Checker":
        for event in SseReader().feed(stream):
            assert self.end is None, "nothing follows the end"
            if not event.event.endswith("_dispatch"):
                self.take(event.event, msgspec.json.decode(event.data))
        return self

    def take(self, name: str, data: dict[str, Any]) -> None:
        assert name == data["type"]
        assert data["sequence_number"] == self.number
        first = {0: "response.created", 1: "response.in_progress"}
        assert name == first.get(self.number, name)
        assert (name == "response.created") == (self.number == 0)
        self.number += 1
        if name in ENDS:
            self.take_end(name, data["response"])
        elif name == "response.output_item.added":
            self.take_added(data)
        elif name == "response.output_item.done":
            self.take_done(data)
        elif name not in ("response.created", "response.in_progress"):
            self.take_inside(name, data)

    def take_added(self, data: dict[str, Any]) -> None:
        item = data["item"]
        assert data["output_index"] == len(self.items), "indices are dense"
        assert item["id"] not in [other["id"] for other in self.items]
        assert item["status"] == "in_progress"
        self.items.append(item)
        self.channels.append({})

    def take_inside(self, name: str, data: dict[str, Any]) -> None:
        index = data["output_index"]
        item = self.items[index]
        assert data["item_id"] == item["id"]
        assert index not in self.finished
        kind, _, act = name.rpartition(".")
        channels = self.channels[index]
        if kind in ("response.content_part", "response.reasoning_summary_part"):
            self.take_part(name, data, item, channels)
            return
        owner, field = DELTAS[kind]
        assert item["type"] == owner
        if owner.endswith("_call"):
            channels.setdefault(kind, Channel())
        channel = channels[kind]
        assert not channel.done
        if act == "delta":
            channel.text += data["delta"]
        else:
            assert data[field] == channel.text
            channel.done = True

    def take_part(
        self, name: str, data: dict[str, Any], item: dict[str, Any], channels: dict[str, Channel]
    ) -> None:
        part = data["part"]
        kind = {
            "output_text": "response.output_text",
            "reasoning_text": "response.reasoning_text",
            "summary_text": "response.reasoning_summary_text",
        }[part["type"]]
        assert item["type"] == DELTAS[kind][0]
        if name.endswith("added"):
            assert kind not in channels, "one part per kind"
            assert part["text"] == ""
            channels[kind] = Channel()
        else:
            assert channels[kind].done, "the text is done before its part"
            assert part["text"] == channels[kind].text

    def take_done(self, data: dict[str, Any]) -> None:
        index, item = data["output_index"], data["item"]
        assert index not in self.finished, "done once"
        assert item["id"] == self.items[index]["id"]
        assert item["status"] == "completed"
        assert all(channel.done for channel in self.channels[index].values())
        streamed = {kind: channel.text for kind, channel in self.channels[index].items()}
        match item["type"]:
            case "message":
                assert item["content"][0]["text"] == streamed["response.output_text"]
            case "reasoning":
                assert item["content"][0]["text"] == streamed["response.reasoning_text"]
                texts = [part["text"] for part in item["summary"]]
                summary = streamed.get("response.reasoning_summary_text")
                assert texts == ([] if summary is None else [summary])
            case "function_call":
                assert item["arguments"] == streamed["response.function_call_arguments"]
            case "custom_tool_call":
                assert item["input"] == streamed["response.custom_tool_call_input"]
        self.finished[index] = item

    def take_end(self, name: str, response: dict[str, Any]) -> None:
        assert name == f"response.{response['status']}"
        assert [item["id"] for item in response["output"]] == [item["id"] for item in self.items]
        for index, item in enumerate(response["output"]):
            if index in self.finished:
                assert item == self.finished[index]
            else:
                assert item["status"] == "incomplete"
                assert name != "response.completed"
        assert (response["error"] is not None) == (name == "response.failed")
        self.end = response


GOLDEN = [transcript for transcript in transcripts() if transcript.api == "responses"]


EACH = pytest.mark.parametrize("transcript", GOLDEN, ids=lambda t: t.id)


@EACH
def test_golden(transcript: Transcript) -> None:
    assert Checker().read(transcript.stream()).end is not None


@EACH
def test_checker_detects_missing_and_repeated_frames(transcript: Transcript) -> None:
    """Without any one of its frames, or with one of them twice, a stream is invalid."""
    frames = [frame + b"\n\n" for frame in transcript.stream().split(b"\n\n")[:-1]]
    for at, frame in enumerate(frames[:-1]):
        if b"_dispatch\n" in frame:
            continue
        for broken in (frames[:at] + frames[at + 1 :], frames[: at + 1] + frames[at:]):
            with pytest.raises((AssertionError, LookupError)):
                Checker().read(b"".join(broken))


class Script:
    """Draws events one by one, each valid after those before it."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.events: list[Event] = []
        self.calls = 0
        self.open: list[int] = []
        self.span = ""

    def step(self) -> None:
        kinds = ["text", "reasoning", "call", "diagnostic", "usage"]
        kinds += ["span_end"] if self.span else []
        kinds += ["args", "args", "close"] if self.open else []
        getattr(self, "add_" + self.draw(st.sampled_from(kinds)))()

    def words(self) -> str:
        return self.draw(st.sampled_from(["", " ", "\n", "a", 'é"\\', "\u2028 ", "</x>"]))

    def add_text(self) -> None:
        self.events.append(TextDelta(self.words()))
        self.span = "text"

    def add_reasoning(self) -> None:
        self.events.append(ReasoningDelta(self.words()))
        self.span = "reasoning"

    def add_span_end(self) -> None:
        seal = "seal" if self.span == "reasoning" and self.draw(st.booleans()) else None
        kind = "text" if self.span == "text" else "reasoning"
        self.events.append(SpanEnd(kind, seal=seal))  # type: ignore[arg-type]
        self.span = ""

    def add_call(self) -> None:
        namespace = self.draw(st.sampled_from([None, "n"]))
        index, custom = self.calls, self.draw(st.booleans())
        self.events.append(CallOpen(index, "f", f"call_{index}", namespace, custom))
        self.calls += 1
        self.open.append(index)
        self.span = ""

    def add_args(self) -> None:
        self.events.append(CallArgs(self.draw(st.sampled_from(self.open)), self.words()))

    def add_close(self) -> None:
        index = self.draw(st.sampled_from(self.open))
        self.open.remove(index)
        self.events.append(CallClose(index))

    def add_diagnostic(self) -> None:
        self.events.append(Diagnostic("odd"))

    def add_usage(self) -> None:
        self.events.append(Usage(3, self.draw(st.integers(0, 9))))


END: st.SearchStrategy[Event] = st.sampled_from([
    Finish("stop"), Finish("length"), Finish("tool_calls"), Finish("stop_sequence", "x"),
    Finish("context_window"), Finish("refusal"), Finish("cancelled"), Finish("error"),
    Failure("engine", "It broke."), Failure("context_overflow", "Long.", "input"),
])  # fmt: skip


@st.composite
def scripts(draw: st.DrawFn) -> list[Event]:
    script = Script(draw)
    for _ in range(draw(st.integers(0, 25))):
        script.step()
    return [*script.events, draw(END)]


def request(*, summary: bool = False, dispatch: bool = False) -> Request:
    body = {
        "model": "m",
        "input": "x",
        "reasoning": {"summary": "auto" if summary else None},
        "nvext": {"dispatch": dispatch},
    }
    return CODEC.decode(msgspec.json.encode(body), {})


@given(
    events=scripts(),
    summary=st.booleans(),
    dispatch=st.booleans(),
    beats=st.sets(st.integers(0, 9)),
)
def test_any_script_yields_a_valid_sequence(
    events: list[Event], summary: bool, dispatch: bool, beats: set[int]
) -> None:
    encoder = CODEC.stream(request(summary=summary, dispatch=dispatch), CountingIds(), clock)
    out = b""
    for at, event in enumerate(events):
        if at in beats:
            out += encoder.keep_alive()
        out += encoder.encode([event])
    assert Checker().read(out).end is not None
    assert encoder.encode([TextDelta("more"), Finish("stop")]) == b""
    assert encoder.keep_alive() == b""


@given(events=scripts(), summary=st.booleans())
def test_non_streaming_response_equals_the_end_of_the_stream(
    events: list[Event], summary: bool
) -> None:
    decoded = request(summary=summary)
    message = fold(events)
    if message.failure is not None or message.finish in ("error", "cancelled"):
        return
    end = Checker().read(CODEC.stream(decoded, CountingIds(), clock).encode(events)).end
    whole = CODEC.encode_message(decoded, [message], CountingIds(), clock)
    assert msgspec.json.decode(whole) == end


@given(events=scripts())
def test_call_is_done_directly_at_its_close(events: list[Event]) -> None:
    encoder = CODEC.stream(request(), CountingIds(), clock)
    for event in events:
        names = [frame.event for frame in SseReader().feed(encoder.encode([event]))]
        assert (names[-1:] == ["response.output_item.done"]) or not isinstance(event, CallClose)


def test_white_space_between_calls_yields_no_item() -> None:
    events: list[Event] = [
        CallOpen(0, "f", "call_1"), CallClose(0), TextDelta("\n"), TextDelta("\n"),
        SpanEnd("text"), CallOpen(1, "g", "call_2"), CallClose(1), Finish("tool_calls"),
    ]  # fmt: skip
    end = Checker().read(CODEC.stream(request(), CountingIds(), clock).encode(events)).end
    assert end is not None
    assert [item["type"] for item in end["output"]] == ["function_call", "function_call"]


def test_white_space_before_text_belongs_to_it() -> None:
    events: list[Event] = [TextDelta("\n"), TextDelta("\nHello"), Finish("stop")]
    end = Checker().read(CODEC.stream(request(), CountingIds(), clock).encode(events)).end
    assert end is not None
    assert end["output"][0]["content"][0]["text"] == "\n\nHello"


def test_logprobs_are_for_visible_text_only() -> None:
    deltas: list[TextDelta | ReasoningDelta] = [
        ReasoningDelta("Yes"), ReasoningDelta("?"), TextDelta("\n"), TextDelta("Yes"),
        TextDelta("!"),
    ]  # fmt: skip
    events: list[Event] = []
    for delta in deltas:
        events += [Logprobs((TokenLogprob(delta.text, -0.5),)), delta]
    events += [CallOpen(0, "f", "call_1"), Logprobs((TokenLogprob("{}", -1.0),))]
    events += [CallArgs(0, "{}"), CallClose(0), Finish("tool_calls")]
    decoded = CODEC.decode(b'{"model": "m", "input": "x", "top_logprobs": 1}', {})
    end = Checker().read(CODEC.stream(decoded, CountingIds(), clock).encode(events)).end
    assert end is not None
    (part,) = end["output"][1]["content"]
    assert [token["token"] for token in part["logprobs"]] == ["\n", "Yes", "!"]
    whole = CODEC.encode_message(decoded, [fold(events)], CountingIds(), clock)
    assert msgspec.json.decode(whole) == end


def test_logprobs_are_omitted_unless_requested() -> None:
    events: list[Event] = [Logprobs((TokenLogprob("a", -0.5),)), TextDelta("a"), Finish("stop")]
    end = Checker().read(CODEC.stream(request(), CountingIds(), clock).encode(events)).end
    assert end is not None
    assert end["output"][0]["content"][0]["logprobs"] == []


def test_logprobs_are_omitted_if_they_do_not_spell_the_text() -> None:
    events: list[Event] = [Logprobs((TokenLogprob("ab", -0.5),)), TextDelta("a"), Finish("stop")]
    decoded = CODEC.decode(b'{"model": "m", "input": "x", "top_logprobs": 1}', {})
    whole = msgspec.json.decode(CODEC.encode_message(decoded, [fold(events)], CountingIds(), clock))
    assert whole["output"][0]["content"][0]["logprobs"] == []


def test_request_of_another_codec_is_encoded_too() -> None:
    decoded = Request("m")
    end = Checker().read(CODEC.stream(decoded, CountingIds(), clock).encode([Finish("stop")])).end
    assert end is not None
    assert (end["model"], end["tools"], end["store"]) == ("m", [], True)


def test_other_choices_are_not_encoded() -> None:
    encoder = CODEC.stream(request(), CountingIds(), clock)
    assert encoder.encode([TextDelta("a")], choice=1) == b""


def test_keep_alive_before_the_first_event_starts_the_stream() -> None:
    encoder = CODEC.stream(request(), CountingIds(), clock)
    names = [frame.event for frame in SseReader().feed(encoder.keep_alive())]
    assert names == ["response.created", "response.in_progress"]
    names = [frame.event for frame in SseReader().feed(encoder.keep_alive())]
    assert names == ["response.in_progress"]
