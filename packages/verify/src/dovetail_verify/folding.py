"""The message that a Messages stream adds up to, folded as leniently as a client does it."""

import json
from typing import Any

from dovetail_verify.check import CheckFailed
from dovetail_verify.exchange import HttpExchange

Json = dict[str, Any]
_TRUNCATED_REASONS = ("max_tokens", "model_context_window_exceeded")


def fold_message(exchange: HttpExchange) -> Json:
    """The message. Fails the check where the stream has no beginning."""
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
    cut = message.get("stop_reason") in _TRUNCATED_REASONS
    message["content"] = [
        _finish_block(block, truncated=cut) for _, block in sorted(blocks.items())
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
    """A block with the input that its fragments spell; of a call that was cut, nothing is known."""
    text = block.pop("json", "")
    if block.get("type") == "tool_use" and text:
        try:
            block["input"] = json.loads(text)
        except ValueError:
            if not truncated:
                raise CheckFailed(f"a tool's input is not JSON: {text[:200]}") from None
    return block
