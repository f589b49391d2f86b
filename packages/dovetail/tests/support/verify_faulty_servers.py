"""Servers with one fault: Dovetail with modified requests, responses or recordings."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dovetail_verify.exchange import HttpExchange, SseFrame
from dovetail_verify.scripted import FileRecording
from dovetail_verify.target import RecordedRequest, TargetServer

Json = dict[str, Any]
Change = Callable[[str, str], str]
#: Field of a response with text -> the kind of the text.
_TEXTS = {
    "thinking": "reasoning",
    "reasoning_content": "reasoning",
    "text": "text",
    "content": "text",
    "partial_json": "input",
    "arguments": "input",
}


@dataclass(frozen=True)
class ExchangeFault:
    """Changes of requests, of responses and of the engine's recording."""

    change_request: Callable[[str, Json], Json] = lambda path, body: body
    change_response: Callable[[HttpExchange], HttpExchange] = lambda exchange: exchange
    change_record: Callable[[RecordedRequest], RecordedRequest] = lambda record: record


class FaultyRecording:
    def __init__(self, recording: FileRecording, fault: ExchangeFault) -> None:
        self._recording, self._fault = recording, fault

    async def find_requests(self, marker: str, min_count: int = 1) -> list[RecordedRequest]:
        return [
            self._fault.change_record(one)
            for one in await self._recording.find_requests(marker, min_count)
        ]


class FaultyTarget(TargetServer):
    """A target whose server has a fault."""

    def __init__(
        self, target: TargetServer, recording: FileRecording, fault: ExchangeFault
    ) -> None:
        faulty = FaultyRecording(recording, fault)
        super().__init__(target.endpoint, target.model, recording=faulty)
        self._fault = fault

    async def request(
        self, method: str, path: str, body: Any = None, *more: Any, **named: Any
    ) -> HttpExchange:
        sent = self._fault.change_request(path, json.loads(json.dumps(body)))
        exchange = self._fault.change_response(
            await super().request(method, path, sent, *more, **named)
        )
        self.exchanges[-1] = exchange
        return exchange


def texts(change: Change) -> Callable[[HttpExchange], HttpExchange]:
    """Change every text of a response. The first argument of `change` is the kind of the text."""

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(one) for one in value]
        if not isinstance(value, dict):
            return value
        # A finished item of the Responses API repeats the content of its deltas.
        repeats = {"arguments": "whole input"} if "type" in value else {}
        kinds = {**_TEXTS, **repeats, "delta": _kind(value)}
        return {
            key: change(kinds[key], one) if key in kinds and isinstance(one, str) else walk(one)
            for key, one in value.items()
        }

    return lambda exchange: rewritten(exchange, walk)


def _kind(event: Json) -> str:
    named = str(event.get("type"))
    return "input" if "arguments" in named else "reasoning" if "reasoning" in named else "text"


def rewritten(exchange: HttpExchange, change: Callable[[Any], Any]) -> HttpExchange:
    """Change the JSON of a response, or of each of its events."""
    if not exchange.frames:
        body = json.dumps(change(json.loads(exchange.body))).encode()
        return replace(exchange, body=body)
    frames = [_frame(frame, change) for frame in exchange.frames]
    return replace(exchange, frames=frames)


def _frame(frame: SseFrame, change: Callable[[Any], Any]) -> SseFrame:
    if frame.json is None or frame.event.endswith("_dispatch"):
        return frame
    return SseFrame(frame.event, json.dumps(change(frame.json)), frame.elapsed_seconds)


def buffered(exchange: HttpExchange) -> HttpExchange:
    """Deliver all events at the end of the response."""
    frames = [SseFrame(f.event, f.data, exchange.total_seconds) for f in exchange.frames]
    return replace(exchange, frames=frames)


def grouped(exchange: HttpExchange) -> HttpExchange:
    """Move the calls to the end of the output."""
    if not exchange.frames:
        return rewritten(exchange, _grouped_body)
    calls = {
        event.get("index", event.get("output_index"))
        for event in exchange.events
        if _is_call(event.get("content_block") or event.get("item") or {})
    }
    moved = [frame for frame in exchange.frames if _of_call(frame, calls)]
    others = [frame for frame in exchange.frames if frame not in moved]
    ends = ("message_delta", "response.completed")
    end = next((at for at, f in enumerate(others) if f.type in ends or _finishes(f)), len(others))
    return replace(exchange, frames=[*others[:end], *moved, *others[end:]])


def _of_call(frame: SseFrame, calls: set[Any]) -> bool:
    event = frame.json if isinstance(frame.json, dict) else {}
    if frame.event.endswith("_dispatch"):
        return frame.event.startswith("tool_call")
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or []]
    if any(delta.get("tool_calls") for delta in deltas):
        return True
    return event.get("index", event.get("output_index", "none")) in calls


def _finishes(frame: SseFrame) -> bool:
    event = frame.json if isinstance(frame.json, dict) else {}
    return any(choice.get("finish_reason") for choice in event.get("choices") or [])


def _is_call(block: Json) -> bool:
    return block.get("type") in ("tool_use", "function_call")


def _grouped_body(body: Json) -> Json:
    for key in ("content", "output"):
        if isinstance(body.get(key), list):
            body[key] = sorted(body[key], key=_is_call)
    return body


def one_piece(exchange: HttpExchange) -> HttpExchange:
    """Send the complete input of a call in one chunk."""
    pieces: list[str] = []

    def collect(kind: str, text: str) -> str:
        if kind == "input":
            pieces.append(text)
        return text

    texts(collect)(exchange)
    left = len(pieces)

    def last(kind: str, text: str) -> str:
        nonlocal left
        if kind != "input":
            return text
        left -= 1
        return "" if left else "".join(pieces)

    return texts(last)(exchange)


def clean_end(exchange: HttpExchange) -> HttpExchange:
    """Make a failure look like the end of a response."""
    if not exchange.frames:
        return replace(exchange, status=200, body=b"{}")
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    named = {"message_start": "message_stop", "response.created": "response.completed"}
    first = exchange.frames[0].type
    end_event = {"type": named[first]} if first in named else end
    return replace(exchange, frames=[*exchange.frames[:-2], SseFrame("", json.dumps(end_event))])


def guessed(exchange: HttpExchange) -> HttpExchange:
    """Complete a truncated call."""
    pieces = 0

    def count(kind: str, text: str) -> str:
        nonlocal pieces
        pieces += kind == "input"
        return text

    texts(count)(exchange)

    def close(kind: str, text: str) -> str:
        nonlocal pieces
        pieces -= kind == "input"
        ends = kind == "whole input" or (kind == "input" and not pieces)
        return text + '"}' if ends else text

    return texts(close)(exchange)


def blank_text(exchange: HttpExchange) -> HttpExchange:
    """Add a text of line breaks after the first reasoning span."""
    if not exchange.frames:
        return rewritten(exchange, _blank_message)
    at = next(n for n, frame in enumerate(exchange.frames) if n > 2)
    index = 90
    events: tuple[Json, ...] = ({"choices": [{"delta": {"content": "\n\n"}}]},)
    if exchange.events_of_type("message_start"):
        block = {"type": "text", "text": ""}
        events = (
            {"type": "content_block_start", "index": index, "content_block": block},
            {
                "type": "content_block_delta",
                "index": index,
                "delta": {"type": "text_delta", "text": "\n"},
            },
            {"type": "content_block_stop", "index": index},
        )
    if exchange.events_of_type("response.created"):
        item = {"type": "message", "content": [{"type": "output_text", "text": "\n"}]}
        kinds = ("response.output_item.added", "response.output_item.done")
        events = tuple({"type": kind, "output_index": index, "item": item} for kind in kinds)
    frames = [SseFrame("", json.dumps(event)) for event in events]
    return replace(exchange, frames=[*exchange.frames[:at], *frames, *exchange.frames[at:]])


def _blank_message(body: Json) -> Json:
    body["choices"][0]["message"]["content"] = "\n\n"
    return body


def counts(change: Callable[[str, int], int]) -> Callable[[HttpExchange], HttpExchange]:
    """Change every token count of a response."""

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            key: change(key, one) if key.endswith("tokens") and isinstance(one, int) else walk(one)
            for key, one in value.items()
        }

    return lambda exchange: rewritten(exchange, walk)


def forgotten(path: str, body: Json) -> Json:
    """Return a history that the server cannot recognize: other ids, another city, no reasoning."""
    key = "messages" if "messages" in body else "input"
    turns = body[key]
    generated = [turn for turn in turns if _is_generated(turn)]
    text = json.dumps(turns)
    for turn in generated:
        text = text.replace(json.dumps(turn), json.dumps(turn).replace("Oslo", "Lima"))
    for number, id in enumerate(_ids(turns)):
        text = text.replace(id, f"call_{number}")
    rest = [turn for turn in json.loads(text) if turn.get("type") != "reasoning"]
    for turn in rest:
        turn.pop("reasoning_content", None)
        if isinstance(turn.get("content"), list):
            turn["content"] = [b for b in turn["content"] if b["type"] != "thinking"]
    return {**body, key: rest}


def _is_generated(turn: Json) -> bool:
    return turn.get("role") == "assistant" or turn.get("type") == "function_call"


def _ids(turns: list[Json]) -> list[str]:
    """Return the ids of calls in a history of any API."""
    found = [turn.get("call_id") for turn in turns]
    for turn in turns:
        found += [call["id"] for call in turn.get("tool_calls") or []]
        blocks = turn.get("content") if isinstance(turn.get("content"), list) else []
        found += [block.get("id") for block in blocks or []]
    return list(dict.fromkeys(id for id in found if id))


def show_ids(path: str, body: Json) -> Json:
    """Add the ids of a history to the system prompt."""
    turns = body.get("messages") or body.get("input") or []
    text = " ".join(_ids(turns))
    if "system" in body:
        body["system"] = [*body["system"], {"type": "text", "text": text}]
    elif text:
        turns[0]["content"] = text
    return body
