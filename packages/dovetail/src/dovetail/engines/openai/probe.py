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

from dovetail.engines.openai.errors import Refusal
from dovetail_protocols import ReasoningField

_log = logging.getLogger(__name__)

THOUGHT = " ".join(f"Consider stone {number}, then the river and the mill." for number in range(6))
GROWTH = 40  # tokens: the thought has twice as many, no framing has
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
Ask = Callable[[dict[str, Any]], Awaitable[int | Refusal | None]]
"""The prompt's tokens of a request; None where a server does not count, or why it refused."""


@dataclass(frozen=True)
class Verdict:
    """The field that is read, None if none is. Where it is not known, the usual one is used.

    `again` says that the question failed and may be asked once more.
    """

    field: ReasoningField | None
    known: bool = True
    why: str = ""
    again: bool = False


async def probe_reasoning(ask: Ask, model: str) -> Verdict:
    """The field that the server reads thoughts in."""
    bare = await ask(_body(model, {}))
    if bare is None:
        return unknown("it does not count tokens", again=False)
    if isinstance(bare, Refusal):
        return unknown(f"status {bare.status}")
    for field in ("reasoning_content", "reasoning"):
        if _grew(bare, await ask(_body(model, {field: THOUGHT}))):
            found: ReasoningField = "reasoning" if field == "reasoning" else "reasoning_content"
            ours = await ask(_body(model, {"reasoning_segments": [THOUGHT, ""]}))
            return Verdict("reasoning_segments" if _grew(bare, ours) else found)
    return Verdict(None)


def unknown(why: str, *, again: bool = True) -> Verdict:
    """No verdict: most servers that read thoughts at all read them there."""
    return Verdict("reasoning_content", known=False, why=why, again=again)


def log_verdict(server: str, verdict: Verdict) -> None:
    fields = {"server": server, "field": verdict.field or "none", "known": verdict.known}
    if verdict.why:
        fields["why"] = verdict.why
    level = logging.INFO if verdict.field is not None and verdict.known else logging.WARNING
    _log.log(level, "reasoning_field", extra={"fields": fields})


def _grew(bare: int, found: int | Refusal | None) -> bool:
    """Whether the thought is in the prompt. A server that refuses the field does not read it."""
    return isinstance(found, int) and found - bare >= GROWTH


def _body(model: str, thought: dict[str, Any]) -> dict[str, Any]:
    assistant = {"role": "assistant", "content": "", "tool_calls": [_CALL], **thought}
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
