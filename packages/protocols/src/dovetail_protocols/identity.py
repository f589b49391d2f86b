"""The client's identity: session, parent and agent, from the headers of known harnesses."""

from collections.abc import Iterable

import msgspec

from dovetail_model import Identity
from dovetail_protocols.codec import Headers

SESSION_HEADERS = (
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "thread-id",
    "session-id",
    "x-session-id",
    "session_id",
    "x-session-affinity",
)
PARENT_HEADERS = ("x-dynamo-parent-session-id", "x-codex-parent-thread-id", "x-parent-session-id")
AGENT_HEADERS = ("x-claude-code-agent-id", "x-openai-subagent")
PARENT_AGENT_HEADERS = ("x-claude-code-parent-agent-id",)


def read_identity(
    headers: Headers, *, session: str | None = None, user: str | None = None
) -> Identity:
    """Read the identity from the headers; `session` from the body is the fallback.

    If a sub-agent has no parent session, its parent is the session that it runs in.
    """
    turn = _turn_metadata(headers)
    agent = _first(headers, AGENT_HEADERS)
    found = read_session(headers) or _text(turn.get("session_id")) or session
    parent = _first(headers, PARENT_HEADERS) or _text(turn.get("parent_thread_id"))
    parent = parent or _first(headers, PARENT_AGENT_HEADERS) or (found if agent else None)
    return Identity(
        session=found,
        parent=parent,
        agent=agent,
        user=user,
        compaction=turn.get("request_kind") == "compaction",
        final=headers.get("x-dynamo-session-final", "").lower() in ("1", "true"),
    )


def read_session(headers: Headers) -> str | None:
    """Return the session named in a header, if any."""
    return _first(headers, SESSION_HEADERS)


def _first(headers: Headers, names: Iterable[str]) -> str | None:
    for name in names:
        if value := headers.get(name):
            return value
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _turn_metadata(headers: Headers) -> dict[str, object]:
    """Read Codex's description of the turn, which is JSON in a header."""
    try:
        value = msgspec.json.decode(headers.get("x-codex-turn-metadata", "{}"))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
