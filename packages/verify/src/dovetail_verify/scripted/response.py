"""An answer as its client reads it, in each API: what was said, in which order, and when.

Read off the wire here and not by our own codecs, which are judged too. Reading is as lenient as
the clients are; what a stream did against its own rules is kept in `faults`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dovetail_verify.check import Failed
from dovetail_verify.exchange import Exchange
from dovetail_verify.scripted.scenarios import Kind


@dataclass
class Shown:
    """A part of the answer. `text` of a call is the JSON of its input, `seal` what is sent back
    with a thought. Times are seconds after the request: of its first piece, its last, its end."""

    kind: Kind
    text: str = ""
    name: str = ""
    id: str = ""
    seal: str = ""
    pieces: int = 0
    begun: float | None = None
    grown: float | None = None
    ended: float | None = None
    at_pieces: list[tuple[float, int]] = field(default_factory=list)

    def grow(self, text: str, at: float) -> None:
        if not text:
            return
        self.begun = at if self.begun is None else self.begun
        self.grown = at
        self.text += text
        self.pieces += 1
        self.at_pieces.append((at, len(self.text)))

    @property
    def input(self) -> dict[str, Any]:
        """A call's input. What is not JSON fails the check."""
        try:
            value = json.loads(self.text or "{}")
        except ValueError:
            raise Failed(f"the input of a call is not JSON: {self.text[:200]!r}") from None
        if not isinstance(value, dict):
            raise Failed(f"the input of a call is no object: {self.text[:200]!r}")
        return value


@dataclass
class Shape:
    """A whole answer. Counts are None where the server does not tell them."""

    exchange: Exchange
    parts: list[Shown] = field(default_factory=list)
    stop: str = ""
    prompt: int | None = None
    cached: int | None = None
    output: int | None = None
    faults: list[str] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)

    def of(self, kind: Kind) -> list[Shown]:
        return [part for part in self.parts if part.kind == kind]

    def text(self, kind: Kind) -> str:
        return "".join(part.text for part in self.of(kind))


def read(api: str, exchange: Exchange) -> Shape:
    """The answer to a request that succeeded."""
    exchange.ok()
    form: Callable[[Shape], None] = _READERS[api, bool(exchange.frames)]
    shape = Shape(exchange)
    form(shape)
    return shape


def _messages_stream(shape: Shape) -> None:
    blocks: dict[int, Shown] = {}
    for frame in shape.exchange.frames:
        event = frame.json if isinstance(frame.json, dict) else {}
        match frame.type:
            case "message_start":
                _messages_usage(shape, event["message"].get("usage") or {})
            case "content_block_start":
                shown = _block(event["content_block"])
                blocks[event["index"]] = shown
                shape.parts.append(shown)
            case "content_block_delta":
                shown = blocks.setdefault(event["index"], Shown("text"))
                _messages_delta(shape, shown, event, frame.at)
            case "content_block_stop" if event["index"] in blocks:
                blocks[event["index"]].ended = frame.at
            case "message_delta":
                shape.stop = event["delta"].get("stop_reason") or shape.stop
                _messages_usage(shape, event.get("usage") or {})


def _messages_delta(shape: Shape, shown: Shown, event: Any, at: float) -> None:
    delta = event["delta"]
    if shown.ended is not None:
        shape.faults.append(f"{delta['type']} for block {event['index']}, which had stopped")
    if delta["type"] == "signature_delta":
        shown.seal = delta["signature"]
    field_of = {"thinking_delta": "thinking", "text_delta": "text"}
    shown.grow(delta.get(field_of.get(delta["type"], "partial_json"), ""), at)


def _messages_whole(shape: Shape) -> None:
    body = shape.exchange.json
    for block in body["content"]:
        shown = _block(block)
        if shown.kind == "call":
            shown.text = json.dumps(block["input"])
        else:
            shown.text = block["thinking" if shown.kind == "thought" else "text"]
        shown.seal = block.get("signature") or ""
        shape.parts.append(shown)
    shape.stop = body.get("stop_reason") or ""
    _messages_usage(shape, body.get("usage") or {})


def _block(block: Any) -> Shown:
    if block["type"] == "tool_use":
        return Shown("call", name=block["name"], id=block["id"])
    return Shown("thought" if "thinking" in block["type"] else "text")


def _messages_usage(shape: Shape, usage: Any) -> None:
    if usage.get("input_tokens") is not None:
        read, made = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
        shape.cached = read if read is not None else shape.cached
        shape.prompt = usage["input_tokens"] + (read or 0) + (made or 0)
    shape.output = usage.get("output_tokens", shape.output)


def _responses_stream(shape: Shape) -> None:
    open_items: dict[int, Shown] = {}
    for frame in shape.exchange.frames:
        event = frame.json if isinstance(frame.json, dict) else {}
        match frame.type:
            case "response.output_item.added":
                shown = _item(event["item"])
                open_items[event["output_index"]] = shown
                shape.parts.append(shown)
            case "response.output_item.done":
                shape.items.append(event["item"])
                shown = open_items.get(event["output_index"]) or _item(event["item"])
                shown.ended = frame.at
                _close_item(shown, event["item"])
            case (
                "response.reasoning_text.delta"
                | "response.output_text.delta"
                | "response.function_call_arguments.delta"
                | "response.reasoning_summary_text.delta"
            ) if event["output_index"] in open_items:
                open_items[event["output_index"]].grow(event["delta"], frame.at)
            case "response.completed" | "response.incomplete" | "response.failed":
                _responses_end(shape, event["response"])


def _close_item(shown: Shown, item: Any) -> None:
    """What the finished item says counts; the deltas are only how it came."""
    shown.seal = item.get("encrypted_content") or ""
    whole = _item_text(item)
    if whole:
        shown.text = whole


def _responses_whole(shape: Shape) -> None:
    body = shape.exchange.json
    for item in body["output"]:
        shown = _item(item)
        _close_item(shown, item)
        shape.parts.append(shown)
    shape.items = body["output"]
    _responses_end(shape, body)


def _item(item: Any) -> Shown:
    if item["type"] == "function_call":
        return Shown("call", name=item["name"], id=item["call_id"])
    return Shown("thought" if item["type"] == "reasoning" else "text")


def _item_text(item: Any) -> str:
    if item["type"] == "function_call":
        return str(item.get("arguments") or "")
    parts = item.get("content") or item.get("summary") or []
    return "".join(part.get("text", "") for part in parts)


def _responses_end(shape: Shape, response: Any) -> None:
    shape.stop = response.get("status") or ""
    usage = response.get("usage") or {}
    shape.prompt, shape.output = usage.get("input_tokens"), usage.get("output_tokens")
    shape.cached = (usage.get("input_tokens_details") or {}).get("cached_tokens")


def _chat_stream(shape: Shape) -> None:
    calls: dict[int, Shown] = {}
    for frame in shape.exchange.frames:
        # A side channel has names for its events; the chat stream itself has none.
        if frame.event not in ("", "message") or not isinstance(frame.json, dict):
            continue
        _chat_usage(shape, frame.json.get("usage") or {})
        for choice in frame.json.get("choices") or []:
            _chat_delta(shape, calls, choice.get("delta") or {}, frame.at)
            shape.stop = choice.get("finish_reason") or shape.stop


def _chat_delta(shape: Shape, calls: dict[int, Shown], delta: Any, at: float) -> None:
    for kind, text in (("thought", _thought(delta)), ("text", delta.get("content") or "")):
        if text:
            if not shape.parts or shape.parts[-1].kind != kind:
                shape.parts.append(Shown("thought" if kind == "thought" else "text"))
            shape.parts[-1].grow(text, at)
    for told in delta.get("tool_calls") or []:
        function = told.get("function") or {}
        if told["index"] not in calls:
            calls[told["index"]] = Shown("call", name=function["name"], id=told["id"])
            shape.parts.append(calls[told["index"]])
        calls[told["index"]].grow(function.get("arguments") or "", at)
        calls[told["index"]].ended = at


def _chat_whole(shape: Shape) -> None:
    choice = shape.exchange.json["choices"][0]
    message = choice["message"]
    for kind, text in (("thought", _thought(message)), ("text", message.get("content") or "")):
        if text:
            shape.parts.append(Shown("thought" if kind == "thought" else "text", text))
    for told in message.get("tool_calls") or []:
        function = told["function"]
        shape.parts.append(Shown("call", function["arguments"], function["name"], told["id"]))
    shape.stop = choice.get("finish_reason") or ""
    _chat_usage(shape, shape.exchange.json.get("usage") or {})


def _thought(message: Any) -> str:
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def _chat_usage(shape: Shape, usage: Any) -> None:
    if usage.get("prompt_tokens") is not None:
        shape.prompt, shape.output = usage["prompt_tokens"], usage.get("completion_tokens")
        shape.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


_READERS: dict[tuple[str, bool], Callable[[Shape], None]] = {
    ("messages", True): _messages_stream,
    ("messages", False): _messages_whole,
    ("responses", True): _responses_stream,
    ("responses", False): _responses_whole,
    ("chat", True): _chat_stream,
    ("chat", False): _chat_whole,
}
