"""A request and its complete response, recorded as evidence."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dovetail_verify.check import CheckFailed

MAX_SHOWN_CHARS = 600  # of a request or a response
_SECRET_HEADERS = ("authorization", "x-api-key")


@dataclass(frozen=True)
class SseFrame:
    """A server-sent event and its arrival time. `event` is empty if it has no `event:` line."""

    event: str
    data: str
    elapsed_seconds: float = 0.0

    @cached_property
    def json(self) -> Any:
        """The data as JSON; None if they are not JSON."""
        try:
            return json.loads(self.data)
        except ValueError:
            return None

    @property
    def type(self) -> str:
        """The type in the data, or else the name in the `event:` line."""
        value = self.json
        kind = value.get("type") if isinstance(value, dict) else None
        return kind if isinstance(kind, str) else self.event


@dataclass(frozen=True)
class SentRequest:
    """A request. `body` is a JSON value or raw bytes. `authenticated` adds the API key."""

    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    authenticated: bool = True

    @property
    def payload(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else json.dumps(self.body, ensure_ascii=False).encode()

    def __str__(self) -> str:
        shown = [f"{k}: {v}" for k, v in self.headers.items() if k.lower() not in _SECRET_HEADERS]
        head = " ".join([f"{self.method} {self.path}", *(f"[{header}]" for header in shown)])
        if self.body is None:
            return head
        text = self.payload.decode("utf-8", "replace")
        return f"{head} {abbreviate(text)}"


@dataclass(frozen=True)
class HttpExchange:
    """A request and its response: status, headers, body, and the events of a stream.

    `total_seconds` is the time from the request to the end of the body.
    """

    request: SentRequest
    status: int
    headers: Mapping[str, str]
    body: bytes
    frames: Sequence[SseFrame] = ()
    total_seconds: float = 0.0

    @cached_property
    def json(self) -> Any:
        """The body as JSON. Fails the check if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise CheckFailed(f"the body is not JSON (status {self.status})") from None

    @cached_property
    def events(self) -> list[Any]:
        """The JSON objects of all events, without pings."""
        found = [frame.json for frame in self.frames]
        return [value for value in found if isinstance(value, dict) and value.get("type") != "ping"]

    def events_of_type(self, type: str) -> list[Any]:
        """Return the events of one type."""
        return [event for event in self.events if event.get("type") == type]

    def require_ok(self) -> "HttpExchange":
        """Return the exchange. Fail the check unless the status is 200."""
        if self.status != 200:
            raise CheckFailed(f"returned status {self.status}")
        return self

    @property
    def summary(self) -> str:
        """The response as reports show it."""
        if not self.frames:
            return f"{self.status} {abbreviate(self.body.decode('utf-8', 'replace'))}".strip()
        frames = abbreviate(_summarize_frames(self.frames))
        return f"{self.status}, {len(self.frames)} events: {frames}"


def abbreviate(text: str, max_chars: int = MAX_SHOWN_CHARS) -> str:
    """Return the text, without its middle if it is longer than `max_chars`."""
    text = " ".join(text.split())
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]} … {text[-half:]}"


def _summarize_frames(frames: Sequence[SseFrame]) -> str:
    """List the events by name, with a count for repeated ones."""
    labels: list[str] = []
    last, count = "", 0
    for frame in (*frames, None):
        name = "" if frame is None else _frame_label(frame)
        if name == last:
            count += 1
            continue
        if count:
            labels.append(last if count == 1 else f"{last} ×{count}")
        last, count = name, 1
    return ", ".join(labels)


def _frame_label(frame: SseFrame) -> str:
    """Return the type of an event, or the fields of a Chat chunk, which has no type."""
    value = frame.json
    if frame.type or not isinstance(value, dict):
        return frame.type or abbreviate(frame.data, 40)
    choices = value.get("choices")
    if not isinstance(choices, list):
        return abbreviate(frame.data, 80)
    if not choices or not isinstance(choices[0], dict):
        return "chunk of usage" if value.get("usage") else "empty chunk"
    inside = [name for name, part in (choices[0].get("delta") or {}).items() if part]
    ends = choices[0].get("finish_reason")
    return f"chunk of {', '.join([*inside, *([f'finish {ends}'] if ends else [])]) or 'nothing'}"


Json = dict[str, Any]
_TRUNCATED_REASONS = ("max_tokens", "model_context_window_exceeded")


def fold_message(exchange: HttpExchange) -> Json:
    """Return the message of a Messages stream. Fail the check if it has no message_start."""
    starts = exchange.events_of_type("message_start")
    if not starts:
        raise CheckFailed("the stream has no message_start")
    message: Json = {**starts[0]["message"], "content": []}
    usage: Json = dict(message.get("usage") or {})
    blocks: dict[int, Json] = {}
    for event in exchange.events:
        match event.get("type"):
            case "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "json": ""}
            case "content_block_delta":
                _append_delta(blocks.get(event["index"], {}), event["delta"])
            case "message_delta":
                message |= event.get("delta") or {}
                usage |= {k: v for k, v in (event.get("usage") or {}).items() if v is not None}
    truncated = message.get("stop_reason") in _TRUNCATED_REASONS
    message["content"] = [
        _finish_block(block, truncated=truncated) for _, block in sorted(blocks.items())
    ]
    message["usage"] = usage
    return message


def _append_delta(block: Json, delta: Json) -> None:
    match delta.get("type"):
        case "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
        case "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
        case "input_json_delta":
            block["json"] = block.get("json", "") + delta["partial_json"]


def _finish_block(block: Json, *, truncated: bool) -> Json:
    """Parse the input of a call. A truncated call may end anywhere, so its input is optional."""
    text = block.pop("json", "")
    if block.get("type") == "tool_use" and text:
        try:
            block["input"] = json.loads(text)
        except ValueError:
            if not truncated:
                raise CheckFailed(f"a tool's input is not JSON: {text[:200]}") from None
    return block
