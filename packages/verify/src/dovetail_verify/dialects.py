"""The three APIs, so far as checks that are the same for all of them need to know.

Bodies are written and answers are read here as plain JSON. What only one API has is in its checks.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dovetail_verify.check import Failed
from dovetail_verify.exchange import Exchange
from dovetail_verify.folding import folded

Json = dict[str, Any]
LIMIT = 64  # tokens of an answer where nothing else is asked for
CALL_LIMIT = 512  # tokens of an answer that is to hold a call, perhaps behind a thought
NAME = "get_weather"
PARAMETERS: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
DESCRIPTION = "Tells the weather of a city."
ASKED = "What is the weather in Paris? Use the tool."


@dataclass(frozen=True)
class Used:
    """Tokens as an answer counts them: the whole prompt, what of it was cached, the output."""

    prompt: int
    cached: int | None
    output: int


@dataclass(frozen=True)
class Called:
    """A tool call that an answer makes. `arguments` are JSON text."""

    id: str
    name: str
    arguments: str


class Dialect(Protocol):
    """How one API says it."""

    @property
    def api(self) -> str: ...
    @property
    def path(self) -> str: ...

    def body(self, model: str, turns: Sequence[str], system: str = "", limit: int = LIMIT) -> Json:
        """A request: turns of user and assistant in alternation."""
        ...

    def streamed(self, body: Json) -> Json:
        """The same request, streamed, with usage."""
        ...

    def with_tool(self, body: Json) -> Json:
        """The same request with a tool that has to be called."""
        ...

    def text(self, exchange: Exchange) -> str:
        """The visible text of an answer, streamed or whole."""
        ...

    def used(self, exchange: Exchange) -> Used: ...

    def end(self, exchange: Exchange) -> str:
        """Why it ended, in the words of the API."""
        ...

    def calls(self, exchange: Exchange) -> list[Called]: ...

    def answer_id(self, exchange: Exchange) -> str: ...


class Messages:
    """Anthropic Messages."""

    api = "messages"
    path = "/v1/messages"

    def body(self, model: str, turns: Sequence[str], system: str = "", limit: int = LIMIT) -> Json:
        body: Json = {"model": model, "max_tokens": limit, "temperature": 0}
        if system:
            body["system"] = system
        return {**body, "messages": _alternating(turns)}

    def streamed(self, body: Json) -> Json:
        return {**body, "stream": True}

    def with_tool(self, body: Json) -> Json:
        tool = {"name": NAME, "description": DESCRIPTION, "input_schema": PARAMETERS}
        choice = {"type": "tool", "name": NAME}
        return {**body, "max_tokens": CALL_LIMIT, "tools": [tool], "tool_choice": choice}

    def message(self, exchange: Exchange) -> Json:
        """The message of a whole answer, or the one that a stream folds to."""
        message: Json = exchange.ok().json if not exchange.frames else folded(exchange)
        return message

    def text(self, exchange: Exchange) -> str:
        blocks = self.message(exchange)["content"]
        return "".join(block["text"] for block in blocks if block["type"] == "text")

    def used(self, exchange: Exchange) -> Used:
        usage = self.message(exchange).get("usage") or {}
        read, made = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
        prompt = _number(usage, "input_tokens") + (read or 0) + (made or 0)
        return Used(prompt, read, _number(usage, "output_tokens"))

    def end(self, exchange: Exchange) -> str:
        return str(self.message(exchange).get("stop_reason"))

    def calls(self, exchange: Exchange) -> list[Called]:
        blocks = self.message(exchange)["content"]
        return [
            Called(block["id"], block["name"], _text_of(block["input"]))
            for block in blocks
            if block["type"] == "tool_use"
        ]

    def answer_id(self, exchange: Exchange) -> str:
        return str(self.message(exchange).get("id"))


class Responses:
    """OpenAI Responses."""

    api = "responses"
    path = "/v1/responses"

    def body(self, model: str, turns: Sequence[str], system: str = "", limit: int = LIMIT) -> Json:
        items = [{"type": "message", **turn} for turn in _alternating(turns)]
        if system:
            items.insert(0, {"type": "message", "role": "developer", "content": system})
        return {"model": model, "max_output_tokens": limit, "temperature": 0, "input": items}

    def streamed(self, body: Json) -> Json:
        return {**body, "stream": True}

    def with_tool(self, body: Json) -> Json:
        tool = {"type": "function", "name": NAME, "description": DESCRIPTION}
        tools = [{**tool, "parameters": PARAMETERS, "strict": False}]
        choice = {"type": "function", "name": NAME}
        return {**body, "max_output_tokens": CALL_LIMIT, "tools": tools, "tool_choice": choice}

    def response(self, exchange: Exchange) -> Json:
        """The response: whole, or as the last event of a stream has it."""
        if not exchange.ok().frames:
            whole: Json = exchange.json
            return whole
        ends = [event for event in exchange.events if event.get("type") in RESPONSE_ENDS]
        if not ends:
            raise Failed("the stream has no response.completed")
        response: Json = ends[-1]["response"]
        return response

    def text(self, exchange: Exchange) -> str:
        parts = [
            part
            for item in self.response(exchange)["output"]
            if item["type"] == "message"
            for part in item["content"]
        ]
        return "".join(part.get("text", "") for part in parts)

    def used(self, exchange: Exchange) -> Used:
        usage = self.response(exchange).get("usage") or {}
        details = usage.get("input_tokens_details") or {}
        prompt, output = _number(usage, "input_tokens"), _number(usage, "output_tokens")
        return Used(prompt, details.get("cached_tokens"), output)

    def end(self, exchange: Exchange) -> str:
        response = self.response(exchange)
        details = response.get("incomplete_details") or {}
        return str(details.get("reason") or response.get("status"))

    def calls(self, exchange: Exchange) -> list[Called]:
        return [
            Called(item["call_id"], item["name"], item["arguments"])
            for item in self.response(exchange)["output"]
            if item["type"] == "function_call"
        ]

    def answer_id(self, exchange: Exchange) -> str:
        return str(self.response(exchange).get("id"))


class Chat:
    """OpenAI Chat Completions."""

    api = "chat"
    path = "/v1/chat/completions"

    def body(self, model: str, turns: Sequence[str], system: str = "", limit: int = LIMIT) -> Json:
        messages = _alternating(turns)
        if system:
            messages.insert(0, {"role": "system", "content": system})
        return {"model": model, "max_tokens": limit, "temperature": 0, "messages": messages}

    def streamed(self, body: Json) -> Json:
        return {**body, "stream": True, "stream_options": {"include_usage": True}}

    def with_tool(self, body: Json) -> Json:
        function = {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}
        choice = {"type": "function", "function": {"name": NAME}}
        tools = [{"type": "function", "function": function}]
        return {**body, "max_tokens": CALL_LIMIT, "tools": tools, "tool_choice": choice}

    def chunks(self, exchange: Exchange) -> list[Json]:
        """The chunks of a stream, in order."""
        found = [frame.json for frame in exchange.ok().frames if frame.event in ("", "message")]
        return [chunk for chunk in found if isinstance(chunk, dict) and "choices" in chunk]

    def deltas(self, exchange: Exchange) -> list[Json]:
        """The deltas of the first choice."""
        chosen = [c for chunk in self.chunks(exchange) for c in chunk["choices"]]
        return [c.get("delta") or {} for c in chosen if c.get("index", 0) == 0]

    def text(self, exchange: Exchange) -> str:
        if exchange.frames:
            return "".join(delta.get("content") or "" for delta in self.deltas(exchange))
        return exchange.ok().json["choices"][0]["message"].get("content") or ""

    def used(self, exchange: Exchange) -> Used:
        holders = self.chunks(exchange) if exchange.frames else [exchange.ok().json]
        usage: Json = next((h["usage"] for h in reversed(holders) if h.get("usage")), {})
        details = usage.get("prompt_tokens_details") or {}
        prompt, output = _number(usage, "prompt_tokens"), _number(usage, "completion_tokens")
        return Used(prompt, details.get("cached_tokens"), output)

    def end(self, exchange: Exchange) -> str:
        holders = self.chunks(exchange) if exchange.frames else [exchange.ok().json]
        reasons = [c.get("finish_reason") for holder in holders for c in holder["choices"]]
        return str(next((reason for reason in reasons if reason), None))

    def calls(self, exchange: Exchange) -> list[Called]:
        if not exchange.frames:
            made = exchange.ok().json["choices"][0]["message"].get("tool_calls") or []
            return [
                Called(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in made
            ]
        return _joined_calls(self.deltas(exchange))

    def answer_id(self, exchange: Exchange) -> str:
        holder = self.chunks(exchange)[0] if exchange.frames else exchange.ok().json
        return str(holder.get("id"))


MESSAGES, RESPONSES, CHAT = Messages(), Responses(), Chat()
DIALECTS: tuple[Dialect, ...] = (MESSAGES, RESPONSES, CHAT)
RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed")


def _alternating(turns: Sequence[str]) -> list[Json]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]


def _number(usage: Json, name: str) -> int:
    value = usage.get(name)
    if not isinstance(value, int):
        raise Failed(f"usage has no {name}")
    return value


def _text_of(value: Any) -> str:
    return json.dumps(value)


def _joined_calls(deltas: Sequence[Json]) -> list[Called]:
    """The calls that the deltas of a stream add up to, by index."""
    found: dict[int, list[str]] = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls") or []):
        call = found.setdefault(part["index"], ["", "", ""])
        function = part.get("function") or {}
        call[0] += part.get("id") or ""
        call[1] += function.get("name") or ""
        call[2] += function.get("arguments") or ""
    return [Called(*call) for _, call in sorted(found.items())]
