"""Dispatch frames: one per complete tool call and one per finished reasoning span.

The frames are the same in every API. Names and payloads are those of Dynamo; the frame of a custom
tool contains its free text.
"""

import msgspec

from dovetail_model import CallArgs, CallClose, CallOpen, Event, Hints, ReasoningDelta, SpanEnd
from dovetail_protocols.json_strings import replace_surrogates
from dovetail_protocols.sse import frame

_encode = msgspec.json.encode


class Dispatcher:
    """Observes the events of one choice and emits one frame per complete call or span."""

    __slots__ = ("_calls", "_choice", "_reasoning", "_reasoning_text", "_spans", "_tools")

    def __init__(self, hints: Hints, choice: int = 0) -> None:
        self._tools = "tools" in hints.dispatch
        self._reasoning = "reasoning" in hints.dispatch
        self._choice = choice
        self._calls: dict[int, tuple[CallOpen, list[str]]] = {}
        self._reasoning_text: list[str] = []
        self._spans = 0

    @property
    def active(self) -> bool:
        """Whether the client requested any dispatch frames."""
        return self._tools or self._reasoning

    def observe(self, event: Event) -> bytes:
        """Return the frame that this event completes, if any. It follows the event's own frames."""
        match event:
            case ReasoningDelta(text=text) if self._reasoning:
                self._reasoning_text.append(text)
            case SpanEnd(kind="reasoning") if self._reasoning and self._reasoning_text:
                return self._reasoning_frame()
            case CallOpen(index=index, server=None) if self._tools:
                self._calls[index] = (event, [])
            case CallArgs(index=index, text=text) if index in self._calls:
                self._calls[index][1].append(text)
            case CallClose(index=index) if index in self._calls:
                return self._call_frame(*self._calls.pop(index))
        return b""

    def _reasoning_frame(self) -> bytes:
        text = replace_surrogates("".join(self._reasoning_text))
        self._reasoning_text = []
        index, self._spans = self._spans, self._spans + 1
        payload = {"choice_index": self._choice, "index": index, "reasoning_content": text}
        data = _encode(payload)
        return frame(data, b"reasoning_dispatch")

    def _call_frame(self, call: CallOpen, pieces: list[str]) -> bytes:
        arguments = replace_surrogates("".join(pieces))
        name = {"name": replace_surrogates(call.name)}
        if call.namespace is not None:
            name["namespace"] = call.namespace
        tool_call: dict[str, object] = {"index": call.index, "id": call.id}
        if call.custom:
            tool_call |= {"type": "custom", "custom": {**name, "input": arguments}}
        else:
            tool_call |= {"type": "function", "function": {**name, "arguments": arguments}}
        data = _encode({"choice_index": self._choice, "tool_call": tool_call})
        return frame(data, b"tool_call_dispatch")
