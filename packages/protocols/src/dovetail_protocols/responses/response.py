"""The response object around the items, the same in a stream and without one."""

from collections.abc import Iterable

import msgspec

from dovetail_model import Failure, FinishReason, Request, Usage
from dovetail_protocols.codec import Clock, IdFactory
from dovetail_protocols.responses import echo, wire

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
`server_is_overloaded` too: a server that is only busy sends `server_error`, which is retried."""


def failure_code(kind: str) -> str:
    """The code of a failed response. What is not listed is ours or the engine's fault."""
    return _FAILURE_CODES.get(kind, "server_error")


_encode = msgspec.json.encode

_INCOMPLETE = {
    "length": "max_output_tokens",
    "context_window": "max_output_tokens",
    "refusal": "content_filter",
}


class ResponseOutcome(msgspec.Struct, frozen=True):
    """How a response ended. `status` is also the name of its last event."""

    status: str
    reason: str | None = None
    error: wire.Json | None = None


def to_outcome(finish: FinishReason, failure: Failure | None, truncated: bool) -> ResponseOutcome:
    """What the end of the model's output means here.

    A truncated call makes the response incomplete whatever the engine reports: a client that saw it
    completed would take a turn in which nothing runs for the end of the work.
    """
    if failure is not None:
        code = failure_code(failure.kind)
        return ResponseOutcome("failed", error={"code": code, "message": failure.message})
    if finish in ("cancelled", "error"):
        message = f"The generation ended early: {finish}."
        return ResponseOutcome("failed", error={"code": "server_error", "message": message})
    reason = _INCOMPLETE.get(finish)
    return ResponseOutcome("incomplete" if reason or truncated else "completed", reason)


class ResponseObject:
    """One response: its id, its time, and all that it repeats of the request."""

    __slots__ = ("_clock", "_created", "_echo", "id")

    def __init__(self, request: Request, ids: IdFactory, clock: Clock) -> None:
        self.id = ids("resp_")
        self._clock = clock
        self._created = int(clock())
        self._echo = echo.echo_of(request).fields

    def queued(self) -> msgspec.Raw:
        return self._object("queued", {"output": []})

    def in_progress(self) -> msgspec.Raw:
        return self._object("in_progress", {"output": []})

    def finished(
        self, end: ResponseOutcome, output: Iterable[wire.ItemOut], usage: Usage
    ) -> msgspec.Raw:
        details = {"reason": end.reason} if end.reason else None
        return self._object(
            end.status,
            {
                "completed_at": int(self._clock()) if end.status == "completed" else None,
                "error": end.error,
                "incomplete_details": details,
                "output": list(output),
                "usage": None if end.status == "failed" else _usage(usage),
            },
        )

    def _object(self, status: str, more: wire.Json) -> msgspec.Raw:
        fields = {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }
        return msgspec.Raw(_encode(fields | more)[:-1] + b"," + self._echo[1:])


def _usage(usage: Usage) -> wire.Json:
    """Nothing is charged for writing to a cache here, so none of it is reported."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
