"""The same request in the three APIs, and what their streams say."""

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.frontend.parts import TOOL

APIS = ("chat", "messages", "responses")
PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "completions": "/v1/completions",
}
MOST = 150_000  # tokens that an answer may have
_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
}
_TOOL = {"name": TOOL, "description": "Writes a file."}


def body(api: str, model: str, cue: str, most: int = MOST) -> bytes:
    """A request for a stream, with a tool that the model may call."""
    asked = {"model": model, "stream": True, **_ASK[api](cue, most)}
    return json.dumps(asked).encode()


def _chat(cue: str, most: int) -> dict[str, Any]:
    function = {**_TOOL, "parameters": _SCHEMA}
    said = [{"role": "user", "content": cue}]
    return {
        "max_tokens": most,
        "messages": said,
        "tools": [{"type": "function", "function": function}],
    }


def _messages(cue: str, most: int) -> dict[str, Any]:
    said = [{"role": "user", "content": cue}]
    return {"max_tokens": most, "messages": said, "tools": [{**_TOOL, "input_schema": _SCHEMA}]}


def _responses(cue: str, most: int) -> dict[str, Any]:
    tool = {"type": "function", **_TOOL, "parameters": _SCHEMA}
    return {"max_output_tokens": most, "input": cue, "tools": [tool]}


def _completions(cue: str, most: int) -> dict[str, Any]:
    """The engine itself, asked as our server asks it."""
    return {"max_tokens": most, "prompt": cue, "return_token_ids": True}


_ASK = {
    "chat": _chat,
    "messages": _messages,
    "responses": _responses,
    "completions": _completions,
}


def said(api: str, stream: bytes) -> tuple[str, bool]:
    """The plain text in a stream, and whether the stream came to a proper end."""
    frames = list(payloads(stream))
    return "".join(map(_TEXT[api], frames)), any(map(_ENDED[api], frames))


def payloads(stream: bytes) -> Iterator[Any]:
    """The JSON of each frame."""
    for line in stream.split(b"\n"):
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def _chat_text(frame: Any) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in frame["choices"])


def _messages_text(frame: Any) -> str:
    return frame.get("delta", {}).get("text", "") if frame["type"] == "content_block_delta" else ""


def _responses_text(frame: Any) -> str:
    return frame["delta"] if frame["type"] == "response.output_text.delta" else ""


_TEXT = {"chat": _chat_text, "messages": _messages_text, "responses": _responses_text}
_ENDED = {
    "chat": lambda frame: any(c.get("finish_reason") == "stop" for c in frame["choices"]),
    "messages": lambda frame: frame["type"] == "message_stop",
    "responses": lambda frame: frame["type"] == "response.completed",
}
