"""Simulated agent harnesses: what they send, and how they replay responses.

Each is written from recorded runs of the real harness. They read the frames that our encoders
write, and store their history in the wire format of their API.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from dovetail_protocols import CHAT, MESSAGES, RESPONSES, SseReader

TOOLS: dict[str, dict[str, Any]] = {
    "run_command": {
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "timeout": {"type": "number"},
            "background": {"type": "boolean", "default": False},
        },
        "required": ["command"],
    },
    "edit_file": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "old": {"type": "string"},
            "new": {"type": "string"},
            "lines": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["path", "new"],
    },
}
SYSTEM = "You are a careful engineer.\nWork in /repo."


class AgentCall(NamedTuple):
    """A call that the agent is to run."""

    id: str
    name: str


class Agent:
    """The common state of all harnesses. `history` is in the format of the API."""

    name = ""
    codec: Any

    def __init__(self, session: str = "s-1", system: str = SYSTEM) -> None:
        self.session = session
        self.system = system
        self.history: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.thinking = True
        self.tools = dict(TOOLS)

    def add_user_message(self, text: str) -> None:
        raise NotImplementedError

    def set_system(self, system: str) -> None:
        """Use another system text from now on."""
        self.system = system

    def body(self) -> dict[str, Any]:
        raise NotImplementedError

    def receive(self, frames: bytes) -> list[AgentCall]:
        raise NotImplementedError

    def add_results(self, results: Sequence[tuple[AgentCall, str]]) -> None:
        raise NotImplementedError

    def request(self) -> tuple[bytes, dict[str, str]]:
        return json.dumps(self.body(), ensure_ascii=False).encode(), self.headers


def read(frames: bytes) -> list[dict[str, Any]]:
    """The data of all frames."""
    events = SseReader().feed(frames)
    return [json.loads(e.data) for e in events if e.data and e.data != "[DONE]"]


class MessagesAgent(Agent):
    """The official SDK in a loop: replays responses unchanged."""

    name, codec = "sdk", MESSAGES

    def __init__(self, session: str = "s-1", system: str = SYSTEM) -> None:
        super().__init__(session, system)
        self.headers = {"x-claude-code-session-id": session, "anthropic-version": "2023-06-01"}

    def add_user_message(self, text: str) -> None:
        self.history.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def body(self) -> dict[str, Any]:
        tools = [
            {"name": name, "description": "", "input_schema": s} for name, s in self.tools.items()
        ]
        body = {
            "model": "m",
            "messages": self.history,
            "system": [{"type": "text", "text": self.system}],
            "tools": tools,
            "max_tokens": 32000,
            "stream": True,
        }
        if self.thinking:
            body["thinking"] = {"type": "adaptive"}
        return body

    def receive(self, frames: bytes) -> list[AgentCall]:
        blocks: dict[int, dict[str, Any]] = {}
        partial: dict[int, str] = {}
        for event in read(frames):
            match event["type"]:
                case "content_block_start":
                    blocks[event["index"]] = dict(event["content_block"])
                    partial[event["index"]] = ""
                case "content_block_delta":
                    block, delta = blocks[event["index"]], event["delta"]
                    for field in ("text", "thinking", "signature"):
                        if field in delta:
                            block[field] = block.get(field, "") + delta[field]
                    partial[event["index"]] += delta.get("partial_json", "")
        for at, block in blocks.items():
            if block["type"] == "tool_use":
                block["input"] = _object(partial[at])
        self.history.append({"role": "assistant", "content": list(blocks.values())})
        return [AgentCall(b["id"], b["name"]) for b in blocks.values() if b["type"] == "tool_use"]

    def add_results(self, results: Sequence[tuple[AgentCall, str]]) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in results
        ]
        self.history.append({"role": "user", "content": content})


class ClaudeCode(MessagesAgent):
    """Rewrites inputs, moves calls after text, changes content forms, results as they complete."""

    name = "claude-code"
    turns = 0

    def body(self) -> dict[str, Any]:
        body = super().body()
        self.turns += 1
        billing = f"x-anthropic-billing-header: cc_version=2.1.197.{self.turns}; cc_entrypoint=cli;"
        body["system"] = [{"type": "text", "text": billing}, *body["system"]]
        body["messages"] = [self._flip(m, m is self.history[-1]) for m in self.history]
        body["output_config"] = {"effort": "high"}
        body["context_management"] = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
        body["metadata"] = {"user_id": json.dumps({"session_id": self.session, "n": self.turns})}
        return body

    def receive(self, frames: bytes) -> list[AgentCall]:
        received = super().receive(frames)
        content = self.history[-1]["content"]
        for block in content:
            if block["type"] == "tool_use":
                block["input"] = _rewritten(block["input"])
        calls = [b for b in content if b["type"] == "tool_use"]
        others = [b for b in content if b["type"] != "tool_use"]
        first = next((at for at, b in enumerate(content) if b["type"] == "tool_use"), len(content))
        if any(b["type"] == "text" for b in content[first:]):
            self.history[-1]["content"] = others + calls
        return received

    def add_results(self, results: Sequence[tuple[AgentCall, str]]) -> None:
        super().add_results(list(reversed(results)))

    def _flip(self, message: dict[str, Any], last: bool) -> dict[str, Any]:
        content = message["content"]
        if message["role"] != "user" or not isinstance(content, list):
            return message
        if last:
            marked = {**content[-1], "cache_control": {"type": "ephemeral"}}
            return {**message, "content": [*content[:-1], marked]}
        if len(content) == 1 and content[0]["type"] == "text":
            return {**message, "content": content[0]["text"]}
        return message


class Codex(Agent):
    """Items in their order, without ids it does not know; outputs after them."""

    name, codec = "codex", RESPONSES
    keeps_reasoning = True

    def __init__(self, session: str = "s-1", system: str = SYSTEM) -> None:
        super().__init__(session, system)
        self.headers = {"thread-id": session, "session-id": session}
        self.history = [self._message("developer", "input_text", system)]

    def set_system(self, system: str) -> None:
        self.history[0] = self._message("developer", "input_text", system)

    def add_user_message(self, text: str) -> None:
        self.history.append(self._message("user", "input_text", text))

    def body(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "name": name, "description": "", "strict": False, "parameters": s}
            for name, s in self.tools.items()
        ]
        return {
            "model": "m",
            "stream": True,
            "store": False,
            "input": self.history,
            "tools": tools,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "high"} if self.thinking else {},
            "include": ["reasoning.encrypted_content"],
        }

    def receive(self, frames: bytes) -> list[AgentCall]:
        calls = []
        for event in read(frames):
            if event["type"] != "response.output_item.done":
                continue
            item = {k: v for k, v in event["item"].items() if k not in ("id", "status")}
            if item["type"] == "reasoning" and not self.keeps_reasoning:
                item["content"] = None
            self.history.append(item)
            if item["type"] == "function_call":
                calls.append(AgentCall(item["call_id"], item["name"]))
        return calls

    def add_results(self, results: Sequence[tuple[AgentCall, str]]) -> None:
        self.history += [
            {"type": "function_call_output", "call_id": call.id, "output": text}
            for call, text in results
        ]

    @staticmethod
    def _message(role: str, kind: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


class OpenCode(Codex):
    """Stores the encrypted content of reasoning, but not its text."""

    name, keeps_reasoning = "opencode", False


class ChatAgent(Agent):
    """Pi and similar: reasoning in one field, text in another, calls in a third."""

    name, codec = "pi", CHAT
    keeps_reasoning = True

    def __init__(self, session: str = "s-1", system: str = SYSTEM) -> None:
        super().__init__(session, system)
        self.headers = {"x-session-id": session}
        self.history = [{"role": "developer", "content": system}]

    def set_system(self, system: str) -> None:
        self.history[0] = {"role": "developer", "content": system}

    def add_user_message(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def body(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "function": {"name": name, "description": "", "parameters": s}}
            for name, s in self.tools.items()
        ]
        return {"model": "m", "stream": True, "messages": self.history, "tools": tools}

    def receive(self, frames: bytes) -> list[AgentCall]:
        texts = {"content": "", "reasoning_content": ""}
        calls: dict[int, dict[str, Any]] = {}
        for chunk in read(frames):
            for choice in chunk.get("choices", ()):
                delta = choice.get("delta", {})
                for field in texts:
                    texts[field] += delta.get(field) or ""
                for call in delta.get("tool_calls") or ():
                    known = calls.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
                    known["id"] = known["id"] or call.get("id") or ""
                    function = call.get("function") or {}
                    known["name"] = known["name"] or function.get("name") or ""
                    known["arguments"] += function.get("arguments") or ""
        self.history.append(self._message(texts, [calls[at] for at in sorted(calls)]))
        return [AgentCall(call["id"], call["name"]) for _, call in sorted(calls.items())]

    def add_results(self, results: Sequence[tuple[AgentCall, str]]) -> None:
        self.history += [
            {"role": "tool", "tool_call_id": self._id(call.id), "content": text}
            for call, text in results
        ]

    def _message(self, texts: dict[str, str], calls: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": texts["content"] or None}
        if texts["reasoning_content"] and self.keeps_reasoning:
            message["reasoning_content"] = texts["reasoning_content"]
        if calls:
            message["tool_calls"] = [
                {
                    "id": self._id(call["id"]),
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in calls
            ]
        return message

    def _id(self, id: str) -> str:
        return id


class OpenClaw(ChatAgent):
    """Rewrites the ids of calls: only letters and digits are left."""

    name = "openclaw"

    def _id(self, id: str) -> str:
        return "".join(filter(str.isalnum, id))


class PlainChat(ChatAgent):
    """A client without support for reasoning."""

    name, keeps_reasoning = "plain chat", False


AGENTS: tuple[type[Agent], ...] = (
    MessagesAgent,
    ClaudeCode,
    Codex,
    OpenCode,
    ChatAgent,
    OpenClaw,
    PlainChat,
)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _rewritten(input: dict[str, Any]) -> dict[str, Any]:
    """An input as Claude Code replays it: an equivalent call."""
    rewritten = {key: _value(value) for key, value in reversed(input.items())}
    if isinstance(rewritten.get("command"), str):
        rewritten["command"] = rewritten["command"].removeprefix("cd /repo && ")
        rewritten.setdefault("background", False)
    return rewritten


def _value(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value.rstrip() if isinstance(value, str) else value
