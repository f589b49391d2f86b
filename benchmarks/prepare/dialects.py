"""Requests of the clients of the three APIs: histories, returned responses, tool results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from dovetail_protocols import CHAT, MESSAGES, RESPONSES, Codec

Json = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A tool, independent of the API."""

    name: str
    description: str
    parameters: Json

    @property
    def function(self) -> Json:
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Offer:
    """The content that each request of a session repeats."""

    model: str
    system: str
    tools: tuple[Tool, ...]


class Messages:
    """Messages requests of Claude Code: the billing line changes with each request."""

    codec: ClassVar[Codec] = MESSAGES
    path: ClassVar[str] = "/v1/messages"
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
    session: ClassVar[str] = "x-claude-code-session-id"

    def body(self, offer: Offer, items: list[Json]) -> Json:
        billing = f"x-anthropic-billing-header: cc_version=2.1.197.{len(items)};"
        return {
            "model": offer.model,
            "messages": items,
            "system": [{"type": "text", "text": text} for text in (billing, offer.system)],
            "tools": [
                {"name": t.name, "description": t.description, "input_schema": t.parameters}
                for t in offer.tools
            ],
            "max_tokens": 32000,
            "thinking": {"type": "adaptive"},
            "stream": False,
        }

    def question(self, text: str) -> list[Json]:
        return [{"role": "user", "content": text}]

    def called(self, text: str, id: str, tool: str, arguments: Json) -> list[Json]:
        call = {"type": "tool_use", "id": id, "name": tool, "input": arguments}
        return [{"role": "assistant", "content": [{"type": "text", "text": text}, call]}]

    def result(self, id: str, text: str) -> list[Json]:
        result = {"type": "tool_result", "tool_use_id": id, "content": text}
        return [{"role": "user", "content": [result]}]

    def replay(self, response: Json) -> list[Json]:
        return [{"role": "assistant", "content": response["content"]}]

    def call_ids(self, response: Json) -> Iterator[str]:
        return (block["id"] for block in response["content"] if block["type"] == "tool_use")


class Chat:
    """Chat requests of agents: reasoning is sent back next to the content."""

    codec: ClassVar[Codec] = CHAT
    path: ClassVar[str] = "/v1/chat/completions"
    headers: ClassVar[Mapping[str, str]] = {}
    session: ClassVar[str] = "x-session-id"

    def body(self, offer: Offer, items: list[Json]) -> Json:
        return {
            "model": offer.model,
            "messages": [{"role": "system", "content": offer.system}, *items],
            "tools": [{"type": "function", "function": tool.function} for tool in offer.tools],
            "max_tokens": 32000,
            "stream": False,
        }

    def question(self, text: str) -> list[Json]:
        return [{"role": "user", "content": text}]

    def called(self, text: str, id: str, tool: str, arguments: Json) -> list[Json]:
        function = {"name": tool, "arguments": msgspec.json.encode(arguments).decode()}
        call = {"id": id, "type": "function", "function": function}
        return [{"role": "assistant", "content": text, "tool_calls": [call]}]

    def result(self, id: str, text: str) -> list[Json]:
        return [{"role": "tool", "tool_call_id": id, "content": text}]

    def replay(self, response: Json) -> list[Json]:
        message = response["choices"][0]["message"]
        return [{name: value for name, value in message.items() if value is not None}]

    def call_ids(self, response: Json) -> Iterator[str]:
        calls = response["choices"][0]["message"].get("tool_calls") or ()
        return (call["id"] for call in calls)


class Responses:
    """Responses requests of Codex: items of the response are sent back unchanged."""

    codec: ClassVar[Codec] = RESPONSES
    path: ClassVar[str] = "/v1/responses"
    headers: ClassVar[Mapping[str, str]] = {}
    session: ClassVar[str] = "session_id"

    def body(self, offer: Offer, items: list[Json]) -> Json:
        return {
            "model": offer.model,
            "instructions": offer.system,
            "input": items,
            "tools": [{"type": "function", **tool.function} for tool in offer.tools],
            "include": ["reasoning.encrypted_content"],
            "store": False,
            "stream": False,
        }

    def question(self, text: str) -> list[Json]:
        part = {"type": "input_text", "text": text}
        return [{"type": "message", "role": "user", "content": [part]}]

    def called(self, text: str, id: str, tool: str, arguments: Json) -> list[Json]:
        part = {"type": "output_text", "text": text}
        spelled = msgspec.json.encode(arguments).decode()
        return [
            {"type": "message", "role": "assistant", "content": [part]},
            {"type": "function_call", "call_id": id, "name": tool, "arguments": spelled},
        ]

    def result(self, id: str, text: str) -> list[Json]:
        return [{"type": "function_call_output", "call_id": id, "output": text}]

    def replay(self, response: Json) -> list[Json]:
        return list(response["output"])

    def call_ids(self, response: Json) -> Iterator[str]:
        return (item["call_id"] for item in response["output"] if item["type"] == "function_call")


Dialect = Messages | Chat | Responses
DIALECTS: dict[str, Dialect] = {
    "messages": Messages(),
    "chat": Chat(),
    "responses": Responses(),
}
