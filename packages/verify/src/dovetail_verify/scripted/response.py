"""A response as a client of each API reads it: the parts, their order and their arrival times.

This module does not use Dovetail's codecs, because they are under test too. It parses as leniently
as clients do; `violations` records where a stream violated the rules of its API.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dovetail_verify.check import CheckFailed
from dovetail_verify.exchange import HttpExchange
from dovetail_verify.scripted.scenarios import PartKind


@dataclass
class OutputPart:
    """A part of the output. The `text` of a call is the JSON of its input.

    `signature` is replayed with reasoning. Times are seconds after the request. `chunk_times` has
    the arrival time of each chunk and the length of the text at that time.
    """

    kind: PartKind
    text: str = ""
    name: str = ""
    id: str = ""
    signature: str = ""
    chunk_count: int = 0
    first_chunk_at: float | None = None
    last_chunk_at: float | None = None
    ended_at: float | None = None
    chunk_times: list[tuple[float, int]] = field(default_factory=list)

    def append(self, text: str, at: float) -> None:
        if not text:
            return
        self.first_chunk_at = at if self.first_chunk_at is None else self.first_chunk_at
        self.last_chunk_at = at
        self.text += text
        self.chunk_count += 1
        self.chunk_times.append((at, len(self.text)))

    @property
    def input(self) -> dict[str, Any]:
        """The input of a call. Fails the check if it is not a JSON object."""
        try:
            value = json.loads(self.text or "{}")
        except ValueError:
            raise CheckFailed(f"the input of a call is not JSON: {self.text[:200]!r}") from None
        if not isinstance(value, dict):
            raise CheckFailed(f"the input of a call is not an object: {self.text[:200]!r}")
        return value


@dataclass
class ParsedResponse:
    """A complete response. Counts that the server does not report are None."""

    exchange: HttpExchange
    parts: list[OutputPart] = field(default_factory=list)
    finish_reason: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    violations: list[str] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)

    def parts_of(self, kind: PartKind) -> list[OutputPart]:
        return [part for part in self.parts if part.kind == kind]

    def text_of(self, kind: PartKind) -> str:
        return "".join(part.text for part in self.parts_of(kind))


def parse_response(api: str, exchange: HttpExchange) -> ParsedResponse:
    """Parse the response to a request that succeeded."""
    exchange.require_ok()
    read: Callable[[ParsedResponse], None] = _READERS[api, bool(exchange.frames)]
    parsed = ParsedResponse(exchange)
    read(parsed)
    return parsed


def _parse_messages_stream(parsed: ParsedResponse) -> None:
    blocks: dict[int, OutputPart] = {}
    for frame in parsed.exchange.frames:
        event = frame.json if isinstance(frame.json, dict) else {}
        match frame.type:
            case "message_start":
                _apply_messages_usage(parsed, event["message"].get("usage") or {})
            case "content_block_start":
                part = _part_of_block(event["content_block"])
                blocks[event["index"]] = part
                parsed.parts.append(part)
            case "content_block_delta":
                part = blocks.setdefault(event["index"], OutputPart("text"))
                _apply_messages_delta(parsed, part, event, frame.elapsed_seconds)
            case "content_block_stop" if event["index"] in blocks:
                blocks[event["index"]].ended_at = frame.elapsed_seconds
            case "message_delta":
                parsed.finish_reason = event["delta"].get("stop_reason") or parsed.finish_reason
                _apply_messages_usage(parsed, event.get("usage") or {})


def _apply_messages_delta(parsed: ParsedResponse, part: OutputPart, event: Any, at: float) -> None:
    delta = event["delta"]
    if part.ended_at is not None:
        parsed.violations.append(
            f"{delta['type']} for block {event['index']}, which has already stopped"
        )
    if delta["type"] == "signature_delta":
        part.signature = delta["signature"]
    field_of = {"thinking_delta": "thinking", "text_delta": "text"}
    part.append(delta.get(field_of.get(delta["type"], "partial_json"), ""), at)


def _parse_messages_body(parsed: ParsedResponse) -> None:
    body = parsed.exchange.json
    for block in body["content"]:
        part = _part_of_block(block)
        if part.kind == "call":
            part.text = json.dumps(block["input"])
        else:
            part.text = block["thinking" if part.kind == "reasoning" else "text"]
        part.signature = block.get("signature") or ""
        parsed.parts.append(part)
    parsed.finish_reason = body.get("stop_reason") or ""
    _apply_messages_usage(parsed, body.get("usage") or {})


def _part_of_block(block: Any) -> OutputPart:
    if block["type"] == "tool_use":
        return OutputPart("call", name=block["name"], id=block["id"])
    return OutputPart("reasoning" if "thinking" in block["type"] else "text")


def _apply_messages_usage(parsed: ParsedResponse, usage: Any) -> None:
    if usage.get("input_tokens") is not None:
        read, made = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
        parsed.cached_tokens = read if read is not None else parsed.cached_tokens
        parsed.prompt_tokens = usage["input_tokens"] + (read or 0) + (made or 0)
    parsed.output_tokens = usage.get("output_tokens", parsed.output_tokens)


def _parse_responses_stream(parsed: ParsedResponse) -> None:
    open_items: dict[int, OutputPart] = {}
    for frame in parsed.exchange.frames:
        event = frame.json if isinstance(frame.json, dict) else {}
        match frame.type:
            case "response.output_item.added":
                part = _part_of_item(event["item"])
                open_items[event["output_index"]] = part
                parsed.parts.append(part)
            case "response.output_item.done":
                parsed.items.append(event["item"])
                part = open_items.get(event["output_index"]) or _part_of_item(event["item"])
                part.ended_at = frame.elapsed_seconds
                _finish_item(part, event["item"])
            case (
                "response.reasoning_text.delta"
                | "response.output_text.delta"
                | "response.function_call_arguments.delta"
                | "response.reasoning_summary_text.delta"
            ) if event["output_index"] in open_items:
                open_items[event["output_index"]].append(event["delta"], frame.elapsed_seconds)
            case "response.completed" | "response.incomplete" | "response.failed":
                _apply_response_end(parsed, event["response"])


def _finish_item(part: OutputPart, item: Any) -> None:
    """Take the text of the finished item, which is authoritative over its deltas."""
    part.signature = item.get("encrypted_content") or ""
    whole = _item_text(item)
    if whole:
        part.text = whole


def _parse_responses_body(parsed: ParsedResponse) -> None:
    body = parsed.exchange.json
    for item in body["output"]:
        part = _part_of_item(item)
        _finish_item(part, item)
        parsed.parts.append(part)
    parsed.items = body["output"]
    _apply_response_end(parsed, body)


def _part_of_item(item: Any) -> OutputPart:
    if item["type"] == "function_call":
        return OutputPart("call", name=item["name"], id=item["call_id"])
    return OutputPart("reasoning" if item["type"] == "reasoning" else "text")


def _item_text(item: Any) -> str:
    if item["type"] == "function_call":
        return str(item.get("arguments") or "")
    parts = item.get("content") or item.get("summary") or []
    return "".join(part.get("text", "") for part in parts)


def _apply_response_end(parsed: ParsedResponse, response: Any) -> None:
    parsed.finish_reason = response.get("status") or ""
    usage = response.get("usage") or {}
    parsed.prompt_tokens, parsed.output_tokens = (
        usage.get("input_tokens"),
        usage.get("output_tokens"),
    )
    parsed.cached_tokens = (usage.get("input_tokens_details") or {}).get("cached_tokens")


def _parse_chat_stream(parsed: ParsedResponse) -> None:
    calls: dict[int, OutputPart] = {}
    for frame in parsed.exchange.frames:
        # Only the dispatch events have names; the events of the chat stream itself have none.
        if frame.event not in ("", "message") or not isinstance(frame.json, dict):
            continue
        _apply_chat_usage(parsed, frame.json.get("usage") or {})
        for choice in frame.json.get("choices") or []:
            _apply_chat_delta(parsed, calls, choice.get("delta") or {}, frame.elapsed_seconds)
            parsed.finish_reason = choice.get("finish_reason") or parsed.finish_reason


def _apply_chat_delta(
    parsed: ParsedResponse, calls: dict[int, OutputPart], delta: Any, at: float
) -> None:
    for kind, text in (("reasoning", _reasoning_text(delta)), ("text", delta.get("content") or "")):
        if text:
            if not parsed.parts or parsed.parts[-1].kind != kind:
                parsed.parts.append(OutputPart("reasoning" if kind == "reasoning" else "text"))
            parsed.parts[-1].append(text, at)
    for call in delta.get("tool_calls") or []:
        function = call.get("function") or {}
        if call["index"] not in calls:
            calls[call["index"]] = OutputPart("call", name=function["name"], id=call["id"])
            parsed.parts.append(calls[call["index"]])
        calls[call["index"]].append(function.get("arguments") or "", at)
        calls[call["index"]].ended_at = at


def _parse_chat_body(parsed: ParsedResponse) -> None:
    choice = parsed.exchange.json["choices"][0]
    message = choice["message"]
    for kind, text in (
        ("reasoning", _reasoning_text(message)),
        ("text", message.get("content") or ""),
    ):
        if text:
            parsed.parts.append(OutputPart("reasoning" if kind == "reasoning" else "text", text))
    for call in message.get("tool_calls") or []:
        function = call["function"]
        parsed.parts.append(OutputPart("call", function["arguments"], function["name"], call["id"]))
    parsed.finish_reason = choice.get("finish_reason") or ""
    _apply_chat_usage(parsed, parsed.exchange.json.get("usage") or {})


def _reasoning_text(message: Any) -> str:
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def _apply_chat_usage(parsed: ParsedResponse, usage: Any) -> None:
    if usage.get("prompt_tokens") is not None:
        parsed.prompt_tokens, parsed.output_tokens = (
            usage["prompt_tokens"],
            usage.get("completion_tokens"),
        )
        parsed.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


_READERS: dict[tuple[str, bool], Callable[[ParsedResponse], None]] = {
    ("messages", True): _parse_messages_stream,
    ("messages", False): _parse_messages_body,
    ("responses", True): _parse_responses_stream,
    ("responses", False): _parse_responses_body,
    ("chat", True): _parse_chat_stream,
    ("chat", False): _parse_chat_body,
}
