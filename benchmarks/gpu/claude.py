"""Requests as Claude Code sends them, and how it rewrites a response before it sends it back."""

import copy
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu.sample_texts import SCRIPTED_TOOLS, SHARE_OF_TOOLS, Count, SampleTexts

MODEL = "Qwen3-8B"
PATH = "/v1/messages?beta=true"
IDENTITY = "You are Claude Code, Anthropic's official CLI for Claude."
INTO_FOLDER = "cd /home/user/project && "
CACHED = {"cache_control": {"type": "ephemeral"}}
Block = dict[str, Any]
Message = dict[str, Any]


@dataclass(frozen=True)
class Offer:
    """The content of every request of a client: the long, constant part of its prompts."""

    system: str
    tools: list[dict[str, Any]] = field(default_factory=list)


def make_offer(tokens: int, count: Count) -> Offer:
    """Build a system text and tools of about this many tokens in total."""
    texts = SampleTexts(count)
    scripted = list(SCRIPTED_TOOLS)
    for_tools = int(tokens * SHARE_OF_TOOLS) - count(json.dumps(scripted))
    tools = [*scripted, *texts.tools(for_tools)]
    rest = tokens - sum(count(json.dumps(tool)) for tool in tools) - count(IDENTITY)
    return Offer(texts.page(rest), tools)


def billing(number: int) -> str:
    """Return the billing line: its version varies by first prompt, `cch` with each request."""
    mark = uuid.uuid5(uuid.NAMESPACE_URL, f"billing-{number}").hex
    version = f"cc_version=2.1.197.{mark[:3]}; cc_entrypoint=cli; cch={mark[3:8]};"
    return f"x-anthropic-billing-header: {version}"


def session_id(name: str) -> str:
    """Return the id of a session, which is the same in each run."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"session-{name}"))


def headers(session: str) -> dict[str, str]:
    return {
        "accept": "application/json",
        "anthropic-beta": "interleaved-thinking-2025-05-14,context-management-2025-06-27",
        "anthropic-version": "2023-06-01",
        "content-type": "application/json",
        "user-agent": "claude-cli/2.1.197 (external, cli)",
        "x-api-key": "none",
        "x-app": "cli",
        "x-claude-code-session-id": session,
    }


def body(offer: Offer, messages: list[Message], session: str, header: int = 0) -> bytes:
    """Return a request with its fields in Claude Code's order."""
    request = {
        "model": MODEL,
        "messages": messages,
        "system": [
            {"type": "text", "text": billing(header)},
            {"type": "text", "text": IDENTITY, **CACHED},
            {"type": "text", "text": offer.system, **CACHED},
        ],
        "tools": offer.tools,
        "metadata": {"user_id": json.dumps({"device_id": "0" * 16, "session_id": session})},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }
    return json.dumps(request, ensure_ascii=False).encode()


def user(text: str) -> Message:
    return {"role": "user", "content": [{"type": "text", "text": text, **CACHED}]}


def results(blocks: Iterable[Block], texts: Iterable[str]) -> Message:
    """Return a result for each call of a response, in order."""
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    content = [
        {"tool_use_id": id, "type": "tool_result", "content": text, "is_error": False}
        for id, text in zip(calls, texts, strict=True)
    ]
    content[-1] |= CACHED
    return {"role": "user", "content": content}


def assistant(blocks: list[Block]) -> Message:
    return {"role": "assistant", "content": blocks}


def fold(frames: Iterable[dict[str, Any]]) -> list[Block]:
    """Return the blocks of a streamed response, as a client collects them."""
    blocks: list[Block] = []
    inputs: dict[int, str] = {}
    for frame in frames:
        match frame["type"]:
            case "content_block_start":
                blocks.append(dict(frame["content_block"]))
            case "content_block_delta":
                _add(blocks[frame["index"]], frame["delta"], inputs, frame["index"])
            case "error":
                raise RuntimeError(f"the stream failed: {frame['error']}")
    for index, block in enumerate(blocks):
        if block["type"] == "tool_use":
            block["input"] = json.loads(inputs.get(index) or "{}")
    return blocks


def _add(block: Block, delta: dict[str, Any], inputs: dict[int, str], index: int) -> None:
    match delta["type"]:
        case "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
        case "input_json_delta":
            inputs[index] = inputs.get(index, "") + delta["partial_json"]


def rewritten(blocks: list[Block]) -> list[Block]:
    """Return the copy that Claude Code sends back: tool calls are rewritten.

    Their keys are in another order, defaults are filled in, 5000.0 becomes 5000, and `cd` into the
    working folder is removed from commands. Reasoning and text are unchanged.
    """
    blocks = copy.deepcopy(blocks)
    for block in blocks:
        if block["type"] == "tool_use":
            given = {key: _spelled(value) for key, value in sorted(block["input"].items())}
            block["input"] = {**given, **_defaults(block["name"], given)}
    return blocks


def mutated(blocks: list[Block]) -> list[Block]:
    """Return a copy whose reasoning begins with different words, as after normalization."""
    blocks = copy.deepcopy(blocks)
    for block in blocks:
        if block["type"] == "thinking":
            block["thinking"] = f"Well then: {block['thinking']}"
    return blocks


def _spelled(value: Any) -> Any:
    if isinstance(value, str):
        return value.removeprefix(INTO_FOLDER)
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


def _defaults(name: str, given: dict[str, Any]) -> dict[str, Any]:
    schemas = {tool["name"]: tool["input_schema"]["properties"] for tool in SCRIPTED_TOOLS}
    return {
        key: schema["default"]
        for key, schema in schemas.get(name, {}).items()
        if "default" in schema and key not in given
    }
