"""The code of a response that failed in the middle of its stream."""

_FAILURE_CODES = {
    "context_overflow": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
    "invalid_request": "invalid_prompt",
    "unsupported": "invalid_prompt",
    "unauthenticated": "invalid_prompt",
    "forbidden": "invalid_prompt",
    "not_found": "invalid_prompt",
    "response_not_found": "invalid_prompt",
    "previous_not_found": "invalid_prompt",
    "too_large": "invalid_prompt",
}
"""Kind to the code of a failed response. A client gives up at the codes of its own faults, and at
`server_is_overloaded` too: a server that is only busy says `server_error`, and is asked again."""


def failure_code(kind: str) -> str:
    """The code of a failed response. What is not listed is ours or the engine's fault."""
    return _FAILURE_CODES.get(kind, "server_error")
