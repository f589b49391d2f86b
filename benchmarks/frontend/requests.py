"""The same request in the three APIs, and the text of their streams."""

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
MAX_TOKENS = 150_000  # of a response
_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
}
_TOOL = {"name": TOOL, "description": "Writes a file."}


def body(api: str, model: str, cue: str, max_tokens: int = MAX_TOKENS) -> bytes:
    """Return a request for a stream, with a tool that the model may call."""
    request = {"model": model, "stream": True, **_BODIES[api](cue, max_tokens)}
    return json.dumps(request).encode()


def _chat(cue: str, max_tokens: int) -> dict[str, Any]:
    function = {**_TOOL, "parameters": _SCHEMA}
    messages = [{"role": "user", "content": cue}]
    return {
        "max_tokens": max_tokens,
        "messages": messages,
        "tools": [{"type": "function", "function": function}],
    }


def _messages(cue: str, max_tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": cue}]
    return {
        "max_tokens": max_tokens,
        "messages": messages,
        "tools": [{**_TOOL, "input_schema": _SCHEMA}],
    }


def _responses(cue: str, max_tokens: int) -> dict[str, Any]:
    tool = {"type": "function", **_TOOL, "parameters": _SCHEMA}
    return {"max_output_tokens": max_tokens, "input": cue, "tools": [tool]}


def _completions(cue: str, max_tokens: int) -> dict[str, Any]:
    """Return a request to the engine itself, as our server sends it."""
    return {"max_tokens": max_tokens, "prompt": cue, "return_token_ids": True}


_BODIES = {
    "chat": _chat,
    "messages": _messages,
    "responses": _responses,
    "completions": _completions,
}


def read_stream(api: str, stream: bytes) -> tuple[str, bool]:
    """Return the plain text in a stream, and whether the stream ended properly."""
    frames = list(payloads(stream))
    return "".join(map(_TEXT[api], frames)), any(map(_ENDED[api], frames))


def payloads(stream: bytes) -> Iterator[Any]:
    """Yield the JSON of each frame."""
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
