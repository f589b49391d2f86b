"""Streams of the Messages API: a checker of their order, and events as models generate them."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Event,
    Finish,
    FinishReason,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
    Usage,
)
from dovetail_protocols import ServerEvent, SseReader

SIDE_CHANNEL = {"tool_call_dispatch", "reasoning_dispatch"}
DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}


class Checker:
    """Follows a stream and fails on the first event that is not allowed at its position."""

    def __init__(self) -> None:
        self.state = "before"
        self.content: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self.stop_reason: str | None = None
        self.usage: dict[str, int] = {}

    def feed(self, event: ServerEvent) -> None:
        if event.event in SIDE_CHANNEL:
            assert self.state in ("message", "ended")
            return
        data = msgspec.json.decode(event.data)
        assert data["type"] == event.event
        getattr(self, f"on_{event.event}")(data)

    def on_message_start(self, data: dict[str, Any]) -> None:
        assert self.state == "before"
        message = data["message"]
        assert message["content"] == []
        assert message["stop_reason"] is None
        assert message["id"].startswith("msg_")
        self.usage = message["usage"]
        self.state = "message"

    def on_ping(self, data: dict[str, Any]) -> None:
        assert self.state == "message"

    def on_content_block_start(self, data: dict[str, Any]) -> None:
        assert self.state == "message"
        assert self.open is None, "the previous block has not stopped"
        assert data["index"] == len(self.content), "indices are dense"
        self.open = {**data["content_block"], "pieces": [], "signatures": []}
        if self.open["type"] == "tool_use":
            assert self.open["input"] == {}

    def on_content_block_delta(self, data: dict[str, Any]) -> None:
        assert self.open is not None, "a delta belongs to an open block"
        assert data["index"] == len(self.content)
        delta = data["delta"]
        assert delta["type"] in DELTAS[self.open["type"]]
        assert not self.open["signatures"], "the signature comes once, and last"
        kind, value = delta.values()
        self.open["signatures" if kind == "signature_delta" else "pieces"].append(value)

    def on_content_block_stop(self, data: dict[str, Any]) -> None:
        assert self.open is not None, "a block stops once"
        assert data["index"] == len(self.content)
        block, self.open = self.open, None
        text = "".join(block.pop("pieces"))
        signatures = block.pop("signatures")
        if block["type"] == "text":
            assert text.strip(), "no blocks of white space"
            block["text"] = text
        elif block["type"] == "thinking":
            block |= {"thinking": text, "signature": "".join(signatures)}
        else:
            assert text == text.lstrip(), "SDKs cannot read white space as the first delta"
            block["input"] = text
        self.content.append(block)

    def on_message_delta(self, data: dict[str, Any]) -> None:
        assert self.state == "message"
        assert self.open is None
        self.stop_reason = data["delta"]["stop_reason"]
        assert self.stop_reason
        total = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert sum(data["usage"][name] for name in total) >= 0
        self.state = "ended"

    def on_message_stop(self, data: dict[str, Any]) -> None:
        assert self.state == "ended"
        self.state = "over"

    def on_error(self, data: dict[str, Any]) -> None:
        assert self.state in ("before", "message")
        assert set(data["error"]) == {"type", "message"}
        self.state = "over"


def check(stream: bytes) -> Checker:
    checker = Checker()
    for event in SseReader().feed(stream):
        checker.feed(event)
    return checker


TEXTS = st.text(max_size=6) | st.sampled_from(
    ["", " ", "\n\n", "a", " b", "\u2028", '"\\', "\ud800"]
)
INDICES = st.integers(0, 2)
REASONS: tuple[FinishReason, ...] = (
    "stop",
    "length",
    "tool_calls",
    "stop_sequence",
    "context_window",
    "refusal",
    "cancelled",
    "error",
)


def without_surrogates(events: list[Event]) -> bool:
    """Dispatch frames are shared code and only accept text that UTF-8 can encode."""
    return not any(
        "\ud800" in (e.name if isinstance(e, CallOpen) else getattr(e, "text", "")) for e in events
    )


@st.composite
def spans(draw: st.DrawFn) -> list[Event]:
    kind = draw(st.sampled_from(["text", "reasoning"]))
    make = TextDelta if kind == "text" else ReasoningDelta
    deltas: list[Event] = [make(text) for text in draw(st.lists(TEXTS, min_size=1, max_size=4))]
    seal = draw(st.none() | st.sampled_from(["s1", "s2"])) if kind == "reasoning" else None
    return [*deltas, SpanEnd("text" if kind == "text" else "reasoning", seal=seal)]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@st.composite
def calls(draw: st.DrawFn, index: int) -> list[Event]:
    """Draw a call in fragments; often complete, sometimes truncated anywhere."""
    custom = draw(st.booleans())
    if custom:
        text = draw(st.text(max_size=12))
    else:
        value = draw(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
        text = msgspec.json.format(msgspec.json.encode(value), indent=1).decode()
    at = draw(st.integers(0, len(text)))
    opened = CallOpen(index, "f", id=f"toolu_{index}", custom=custom)
    if draw(st.booleans()):
        return [opened, CallArgs(index, text[:at]), CallArgs(index, text[at:]), CallClose(index)]
    return [opened, CallArgs(index, text[: at // 2]), CallArgs(index, text[at // 2 : at])]


@st.composite
def message_events(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = [Usage(40)]
    for index in range(draw(st.integers(0, 5))):
        events += draw(spans() | calls(index))
    reason = draw(st.sampled_from(REASONS[:-2]))
    return [*events, Usage(40, 9, 16, 3), Finish(reason)]
