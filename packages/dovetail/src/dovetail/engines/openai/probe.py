"""In which field of a chat's history does a server read thoughts?

Servers ignore fields that they do not know, so nothing tells but the prompt's length. The same tool
loop is asked with a long thought in each field and in none: the field that makes the prompt grow is
read. One token is generated each time. Every question begins with other words, so that a server
which does not count what it had cached still counts it all.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from dovetail.engines.openai.errors import UpstreamRejection
from dovetail_protocols import ReasoningField

_log = logging.getLogger(__name__)

PROBE_REASONING = " ".join(
    f"Consider stone {number}, then the river and the mill." for number in range(6)
)
MIN_GROWTH_TOKENS = 40  # tokens: the thought has twice as many, no framing has
_CALL = {
    "id": "call_probe",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at": "mill"}'},
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a place.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string"}},
            "required": ["at"],
        },
    },
}
CountPromptTokens = Callable[[dict[str, Any]], Awaitable[int | UpstreamRejection | None]]
"""The prompt's tokens of a request; None where a server does not count, or why it refused."""


@dataclass(frozen=True)
class ReasoningFieldResult:
    """The field that is read, None if none is. Where it is not known, the usual one is used.

    `again` says that the question failed and may be asked once more.
    """

    field: ReasoningField | None
    known: bool = True
    reason: str = ""
    retryable: bool = False


async def probe_reasoning_field(
    count_tokens: CountPromptTokens, model: str
) -> ReasoningFieldResult:
    """The field that the server reads thoughts in."""
    bare = await count_tokens(_probe_request(model, {}))
    if bare is None:
        return unknown_result("it does not count tokens", retryable=False)
    if isinstance(bare, UpstreamRejection):
        return unknown_result(f"status {bare.status}")
    for field in ("reasoning_content", "reasoning"):
        if _has_grown(bare, await count_tokens(_probe_request(model, {field: PROBE_REASONING}))):
            found: ReasoningField = "reasoning" if field == "reasoning" else "reasoning_content"
            ours = await count_tokens(
                _probe_request(model, {"reasoning_segments": [PROBE_REASONING, ""]})
            )
            return ReasoningFieldResult("reasoning_segments" if _has_grown(bare, ours) else found)
    return ReasoningFieldResult(None)


def unknown_result(reason: str, *, retryable: bool = True) -> ReasoningFieldResult:
    """No verdict: most servers that read thoughts at all read them there."""
    return ReasoningFieldResult(
        "reasoning_content", known=False, reason=reason, retryable=retryable
    )


def log_probe_result(server: str, result: ReasoningFieldResult) -> None:
    fields = {"server": server, "field": result.field or "none", "known": result.known}
    if result.reason:
        fields["why"] = result.reason
    level = logging.INFO if result.field is not None and result.known else logging.WARNING
    _log.log(level, "reasoning_field", extra={"fields": fields})


def _has_grown(bare: int, found: int | UpstreamRejection | None) -> bool:
    """Whether the thought is in the prompt. A server that refuses the field does not read it."""
    return isinstance(found, int) and found - bare >= MIN_GROWTH_TOKENS


def _probe_request(model: str, reasoning_fields: dict[str, Any]) -> dict[str, Any]:
    assistant = {"role": "assistant", "content": "", "tool_calls": [_CALL], **reasoning_fields}
    return {
        "model": model,
        "messages": [
            {"role": "system", "content": f"{secrets.token_hex(8)} is the number of this talk."},
            {"role": "user", "content": "What is at the mill?"},
            assistant,
            {"role": "tool", "tool_call_id": "call_probe", "content": "A wheel."},
        ],
        "tools": [_TOOL],
        "max_tokens": 1,
        "stream": False,
    }
