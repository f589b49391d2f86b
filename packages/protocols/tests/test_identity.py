"""The identity of clients, from the headers of each harness."""

import pytest

from dovetail_model import Identity
from dovetail_protocols.identity import read_identity

IDENTITIES = [
    ("nobody", {}, Identity()),
    (
        "claude_code",
        {"x-claude-code-session-id": "s"},
        Identity(session="s"),
    ),
    (
        "claude_code_subagent",
        {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"},
        Identity(session="s", parent="s", agent="a"),
    ),
    (
        "claude_code_nested_subagent",
        {
            "x-claude-code-session-id": "s",
            "x-claude-code-agent-id": "b",
            "x-claude-code-parent-agent-id": "a",
        },
        Identity(session="s", parent="a", agent="b"),
    ),
    (
        "codex_subagent",
        {"thread-id": "t", "x-codex-parent-thread-id": "p", "x-openai-subagent": "review"},
        Identity(session="t", parent="p", agent="review"),
    ),
    (
        "codex_compaction",
        {"session-id": "s", "x-codex-turn-metadata": '{"request_kind": "compaction"}'},
        Identity(session="s", compaction=True),
    ),
    ("codex_broken_metadata", {"x-codex-turn-metadata": "{"}, Identity()),
    ("opencode", {"x-session-id": "s", "x-parent-session-id": "p"}, Identity("", "s", "p")),
    ("pi", {"session_id": "s"}, Identity(session="s")),
    (
        "dynamo",
        {"x-dynamo-session-id": "s", "x-dynamo-session-final": "true", "x-session-id": "other"},
        Identity(session="s", final=True),
    ),
]


@pytest.mark.parametrize(
    ("headers", "expected"), [row[1:] for row in IDENTITIES], ids=[row[0] for row in IDENTITIES]
)
def test_identity(headers: dict[str, str], expected: Identity) -> None:
    assert read_identity(headers) == expected


def test_session_of_the_body_is_the_fallback_for_headers() -> None:
    assert read_identity({}, session="b", user="u") == Identity(session="b", user="u")
    assert read_identity({"thread-id": "t"}, session="b").session == "t"
