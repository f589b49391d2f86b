"""The three APIs behind one interface, for checks that are the same for all of them.

Requests are built and responses are read as plain JSON. Features that only one API has are handled
in the checks of that API.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dovetail_verify.check import CheckFailed
from dovetail_verify.exchange import HttpExchange, fold_message

Json = dict[str, Any]
DEFAULT_MAX_TOKENS = 64  # limit of a response, unless a check sets another one
TOOL_CALL_MAX_TOKENS = 512  # reasoning may precede the call
TOOL_NAME = "get_weather"
TOOL_PARAMETERS: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TOOL_DESCRIPTION = "Returns the weather of a city."
TOOL_QUESTION = "What is the weather in Paris? Use the tool."


@dataclass(frozen=True)
class TokenUsage:
    """Token counts of a response: the complete prompt, its cached part, and the output."""

    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int


@dataclass(frozen=True)
class ToolCall:
    """A tool call of a response. `arguments` are JSON text."""

    id: str
    name: str
    arguments: str


class Dialect(Protocol):
    """Builds the requests and reads the responses of one API."""

    @property
    def api(self) -> str: ...
    @property
    def path(self) -> str: ...

    def body(
        self,
        model: str,
        turns: Sequence[str],
        system: str = "",
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> Json:
        """Return a request with alternating user and assistant turns."""
        ...

    def with_streaming(self, body: Json) -> Json:
        """Return the same request as a streaming request with usage."""
        ...

    def with_tool(self, body: Json) -> Json:
        """Return the same request with a tool that the model must call."""
        ...

    def text(self, exchange: HttpExchange) -> str:
        """Return the visible text of a streaming or non-streaming response."""
        ...

    def usage(self, exchange: HttpExchange) -> TokenUsage: ...

    def finish_reason(self, exchange: HttpExchange) -> str:
        """Return why the response ended, as the API reports it."""
        ...

    def tool_calls(self, exchange: HttpExchange) -> list[ToolCall]: ...

    def response_id(self, exchange: HttpExchange) -> str: ...


class MessagesDialect:
    """Anthropic Messages."""

    api = "messages"
    path = "/v1/messages"

    def body(
        self,
        model: str,
        turns: Sequence[str],
        system: str = "",
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> Json:
        body: Json = {"model": model, "max_tokens": max_tokens, "temperature": 0}
        if system:
            body["system"] = system
        return {**body, "messages": _alternate_roles(turns)}

    def with_streaming(self, body: Json) -> Json:
        return {**body, "stream": True}

    def with_tool(self, body: Json) -> Json:
        tool = {"name": TOOL_NAME, "description": TOOL_DESCRIPTION, "input_schema": TOOL_PARAMETERS}
        choice = {"type": "tool", "name": TOOL_NAME}
        return {**body, "max_tokens": TOOL_CALL_MAX_TOKENS, "tools": [tool], "tool_choice": choice}

    def message(self, exchange: HttpExchange) -> Json:
        """Return the message of a non-streaming response, or the one that the events add up to."""
        message: Json = (
            exchange.require_ok().json if not exchange.frames else fold_message(exchange)
        )
        return message

    def text(self, exchange: HttpExchange) -> str:
        blocks = self.message(exchange)["content"]
        return "".join(block["text"] for block in blocks if block["type"] == "text")

    def usage(self, exchange: HttpExchange) -> TokenUsage:
        usage = self.message(exchange).get("usage") or {}
        read, made = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
        prompt = _require_count(usage, "input_tokens") + (read or 0) + (made or 0)
        return TokenUsage(prompt, read, _require_count(usage, "output_tokens"))

    def finish_reason(self, exchange: HttpExchange) -> str:
        return str(self.message(exchange).get("stop_reason"))

    def tool_calls(self, exchange: HttpExchange) -> list[ToolCall]:
        blocks = self.message(exchange)["content"]
        return [
            ToolCall(block["id"], block["name"], _dump_json(block["input"]))
            for block in blocks
            if block["type"] == "tool_use"
        ]

    def response_id(self, exchange: HttpExchange) -> str:
        return str(self.message(exchange).get("id"))


class ResponsesDialect:
    """OpenAI Responses."""

    api = "responses"
    path = "/v1/responses"

    def body(
        self,
        model: str,
        turns: Sequence[str],
        system: str = "",
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> Json:
        items = [{"type": "message", **turn} for turn in _alternate_roles(turns)]
        if system:
            items.insert(0, {"type": "message", "role": "developer", "content": system})
        return {"model": model, "max_output_tokens": max_tokens, "temperature": 0, "input": items}

    def with_streaming(self, body: Json) -> Json:
        return {**body, "stream": True}

    def with_tool(self, body: Json) -> Json:
        tool = {"type": "function", "name": TOOL_NAME, "description": TOOL_DESCRIPTION}
        tools = [{**tool, "parameters": TOOL_PARAMETERS, "strict": False}]
        choice = {"type": "function", "name": TOOL_NAME}
        return {
            **body,
            "max_output_tokens": TOOL_CALL_MAX_TOKENS,
            "tools": tools,
            "tool_choice": choice,
        }

    def response(self, exchange: HttpExchange) -> Json:
        """Return the response object: the body, or the one in the last event of a stream."""
        if not exchange.require_ok().frames:
            whole: Json = exchange.json
            return whole
        ends = [event for event in exchange.events if event.get("type") in RESPONSE_END_EVENTS]
        if not ends:
            raise CheckFailed("the stream has no response.completed")
        response: Json = ends[-1]["response"]
        return response

    def text(self, exchange: HttpExchange) -> str:
        parts = [
            part
            for item in self.response(exchange)["output"]
            if item["type"] == "message"
            for part in item["content"]
        ]
        return "".join(part.get("text", "") for part in parts)

    def usage(self, exchange: HttpExchange) -> TokenUsage:
        usage = self.response(exchange).get("usage") or {}
        details = usage.get("input_tokens_details") or {}
        prompt, output = (
            _require_count(usage, "input_tokens"),
            _require_count(usage, "output_tokens"),
        )
        return TokenUsage(prompt, details.get("cached_tokens"), output)

    def finish_reason(self, exchange: HttpExchange) -> str:
        response = self.response(exchange)
        details = response.get("incomplete_details") or {}
        return str(details.get("reason") or response.get("status"))

    def tool_calls(self, exchange: HttpExchange) -> list[ToolCall]:
        return [
            ToolCall(item["call_id"], item["name"], item["arguments"])
            for item in self.response(exchange)["output"]
            if item["type"] == "function_call"
        ]

    def response_id(self, exchange: HttpExchange) -> str:
        return str(self.response(exchange).get("id"))


class ChatDialect:
    """OpenAI Chat Completions."""

    api = "chat"
    path = "/v1/chat/completions"

    def body(
        self,
        model: str,
        turns: Sequence[str],
        system: str = "",
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> Json:
        messages = _alternate_roles(turns)
        if system:
            messages.insert(0, {"role": "system", "content": system})
        return {"model": model, "max_tokens": max_tokens, "temperature": 0, "messages": messages}

    def with_streaming(self, body: Json) -> Json:
        return {**body, "stream": True, "stream_options": {"include_usage": True}}

    def with_tool(self, body: Json) -> Json:
        function = {
            "name": TOOL_NAME,
            "description": TOOL_DESCRIPTION,
            "parameters": TOOL_PARAMETERS,
        }
        choice = {"type": "function", "function": {"name": TOOL_NAME}}
        tools = [{"type": "function", "function": function}]
        return {**body, "max_tokens": TOOL_CALL_MAX_TOKENS, "tools": tools, "tool_choice": choice}

    def chunks(self, exchange: HttpExchange) -> list[Json]:
        """Return the chunks of a stream, in order."""
        found = [
            frame.json for frame in exchange.require_ok().frames if frame.event in ("", "message")
        ]
        return [chunk for chunk in found if isinstance(chunk, dict) and "choices" in chunk]

    def deltas(self, exchange: HttpExchange) -> list[Json]:
        """Return the deltas of the first choice."""
        chosen = [c for chunk in self.chunks(exchange) for c in chunk["choices"]]
        return [c.get("delta") or {} for c in chosen if c.get("index", 0) == 0]

    def text(self, exchange: HttpExchange) -> str:
        if exchange.frames:
            return "".join(delta.get("content") or "" for delta in self.deltas(exchange))
        return exchange.require_ok().json["choices"][0]["message"].get("content") or ""

    def usage(self, exchange: HttpExchange) -> TokenUsage:
        holders = self.chunks(exchange) if exchange.frames else [exchange.require_ok().json]
        usage: Json = next((h["usage"] for h in reversed(holders) if h.get("usage")), {})
        details = usage.get("prompt_tokens_details") or {}
        prompt, output = (
            _require_count(usage, "prompt_tokens"),
            _require_count(usage, "completion_tokens"),
        )
        return TokenUsage(prompt, details.get("cached_tokens"), output)

    def finish_reason(self, exchange: HttpExchange) -> str:
        holders = self.chunks(exchange) if exchange.frames else [exchange.require_ok().json]
        reasons = [c.get("finish_reason") for holder in holders for c in holder["choices"]]
        return str(next((reason for reason in reasons if reason), None))

    def tool_calls(self, exchange: HttpExchange) -> list[ToolCall]:
        if not exchange.frames:
            made = exchange.require_ok().json["choices"][0]["message"].get("tool_calls") or []
            return [
                ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in made
            ]
        return _join_tool_calls(self.deltas(exchange))

    def response_id(self, exchange: HttpExchange) -> str:
        holder = self.chunks(exchange)[0] if exchange.frames else exchange.require_ok().json
        return str(holder.get("id"))


MESSAGES, RESPONSES, CHAT = MessagesDialect(), ResponsesDialect(), ChatDialect()
DIALECTS: tuple[Dialect, ...] = (MESSAGES, RESPONSES, CHAT)
RESPONSE_END_EVENTS = ("response.completed", "response.incomplete", "response.failed")


def _alternate_roles(turns: Sequence[str]) -> list[Json]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]


def _require_count(usage: Json, name: str) -> int:
    value = usage.get(name)
    if not isinstance(value, int):
        raise CheckFailed(f"usage has no {name}")
    return value


def _dump_json(value: Any) -> str:
    return json.dumps(value)


def _join_tool_calls(deltas: Sequence[Json]) -> list[ToolCall]:
    """Return the calls that the deltas of a stream add up to, by index."""
    found: dict[int, list[str]] = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls") or []):
        call = found.setdefault(part["index"], ["", "", ""])
        function = part.get("function") or {}
        call[0] += part.get("id") or ""
        call[1] += function.get("name") or ""
        call[2] += function.get("arguments") or ""
    return [ToolCall(*call) for _, call in sorted(found.items())]
