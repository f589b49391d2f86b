"""The response object around the items, identical in streams and non-streaming responses."""

from collections.abc import Iterable

import msgspec

from dovetail_model import Failure, FinishReason, Request, ResponseFields, Usage
from dovetail_protocols.codec import Clock, IdFactory
from dovetail_protocols.responses import echo, wire

_FAILURE_CODES = {
    "context_overflow": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
    "budget_exceeded": "insufficient_quota",
    "invalid_request": "invalid_prompt",
    "unsupported": "invalid_prompt",
    "unauthenticated": "invalid_prompt",
    "forbidden": "invalid_prompt",
    "not_found": "invalid_prompt",
    "response_not_found": "invalid_prompt",
    "previous_not_found": "invalid_prompt",
    "too_large": "invalid_prompt",
}
"""Error kind -> code of a failed response. Clients do not retry the codes of client errors, nor
`server_is_overloaded`: a server that is only busy sends `server_error`, which is retried."""


def failure_code(kind: str) -> str:
    """Return the code of a failed response; unlisted kinds are server or engine errors."""
    return _FAILURE_CODES.get(kind, "server_error")


_encode = msgspec.json.encode

_INCOMPLETE = {
    "length": "max_output_tokens",
    "context_window": "max_output_tokens",
    "refusal": "content_filter",
}


#: Fields for which null is the value of a server that does not have them.
_NULLABLE = frozenset(
    (
        "max_output_tokens",
        "max_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    )
)


class ResponseOutcome(msgspec.Struct, frozen=True):
    """The outcome of a response. `status` is also the name of its last event."""

    status: str
    reason: str | None = None
    error: wire.Json | None = None


def to_outcome(finish: FinishReason, failure: Failure | None, truncated: bool) -> ResponseOutcome:
    """Map the end of the model's output to the outcome of the response.

    A truncated call makes the response incomplete regardless of what the engine reports: if a
    client saw it as completed, it would take a turn in which no tool runs for the end of the task.
    """
    if failure is not None:
        code = failure_code(failure.kind)
        return ResponseOutcome("failed", error={"code": code, "message": failure.message})
    if finish in ("cancelled", "error"):
        message = f"The generation ended early (finish reason: {finish})."
        return ResponseOutcome("failed", error={"code": "server_error", "message": message})
    reason = _INCOMPLETE.get(finish)
    return ResponseOutcome("incomplete" if reason or truncated else "completed", reason)


class ResponseObject:
    """One response object: its id, its time, and the repeated fields of the request."""

    __slots__ = ("_clock", "_created", "_echo", "_sampling", "id")

    def __init__(self, request: Request, ids: IdFactory, clock: Clock) -> None:
        self.id = ids("resp_")
        self._clock = clock
        self._created = int(clock())
        repeated = echo.echo_of(request)
        self._echo = repeated.fields
        self._sampling: wire.Json = dict(repeated.sampling_fields())

    def update(self, returned: ResponseFields) -> None:
        """Repeat what an upstream server returned instead of what the client sent."""
        fields = {
            name: value
            for name, value in returned.fields.items()
            if (value is not None or name in _NULLABLE)
            and (returned.api == "responses" or name == "service_tier")
        }
        self._sampling = {name: fields.pop(name, value) for name, value in self._sampling.items()}
        if fields:
            echoed = msgspec.json.decode(self._echo, type=dict[str, msgspec.Raw])
            self._echo = _encode({**echoed, **fields})

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
        fields: wire.Json = {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **self._sampling,
        }
        return msgspec.Raw(_encode(fields | more)[:-1] + b"," + self._echo[1:])


def _usage(usage: Usage) -> wire.Json:
    """Encode usage. Writing to the cache is not charged, so it is not reported."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
