"""The harness that sent a request, from its headers."""

from dovetail_protocols.codec import Headers

OTHER = "other"
#: Beginning of the `user-agent` in lower case -> harness. The names are those of `dovetail launch`.
_USER_AGENTS = (
    ("claude-cli", "claude"),
    ("claude-code", "claude"),
    ("codex", "codex"),
    ("opencode", "opencode"),
    ("openclaw", "openclaw"),
    ("pi-coding-agent", "pi"),
    ("pi/", "pi"),
    ("anthropic/", "anthropic-sdk"),
    ("asyncanthropic/", "anthropic-sdk"),
    ("openai/", "openai-sdk"),
    ("asyncopenai/", "openai-sdk"),
)
_PREFIXES = tuple(prefix for prefix, _ in _USER_AGENTS)
#: Headers that only one harness sends, for proxies that replace the `user-agent`.
_HEADERS = (("x-claude-code-session-id", "claude"), ("x-codex-turn-metadata", "codex"))


def read_harness(headers: Headers) -> str:
    """Return the harness or SDK of a client. The names are a closed set: clients choose headers."""
    agent = headers.get("user-agent", "").lower()
    if agent.startswith(_PREFIXES):
        return next(name for prefix, name in _USER_AGENTS if agent.startswith(prefix))
    for header, name in _HEADERS:
        if header in headers:
            return name
    return OTHER
