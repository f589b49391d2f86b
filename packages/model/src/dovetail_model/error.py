"""Errors, grouped by the party that caused them.

    DovetailError
    ├── ClientError        the request is at fault
    │   ├── InvalidRequest     a field is invalid or missing (see `param`)
    │   ├── Unauthenticated    the API key is missing or unknown
    │   ├── Forbidden          the API key does not permit this
    │   ├── NotFound           the model or route does not exist
    │   ├── ResponseNotFound   the response is not stored
    │   ├── PreviousResponseNotFound   `previous_response_id` is not stored
    │   ├── RequestTooLarge    the body exceeds the size limit
    │   ├── ContextOverflow    the prompt does not fit into the context window
    │   ├── RateLimited        too many requests for this key
    │   ├── BudgetExceeded     the budget of the key or tenant is used up
    │   └── Unsupported        the feature is known but not supported
    ├── EngineError        the model server is at fault
    │   ├── InvalidEngineResponse  the engine's response is not one of its API
    │   ├── EngineUnavailable  the engine is unreachable or has crashed
    │   ├── EngineTimeout      the engine did not respond in time
    │   └── Overloaded         the engine has no capacity left
    └── InternalError      Dovetail is at fault

Each protocol codec maps `kind` to its own status and error type in one table; nothing else about
an error depends on the API. An error in the middle of a stream is a `Failure` event.
"""

from dovetail_model.event import Failure

MAX_MESSAGE_CHARS = 4096  # shown to clients: a message may quote a value of any length


class DovetailError(Exception):
    """Base class of all errors. Raise one of the subclasses instead.

    `reason` is more specific than `kind` and meant for operators. Clients do not see it.
    `log_message` replaces the message in the log, if clients must not know all of it.
    """

    kind: str = "internal"
    reason: str | None = None
    log_message: str | None = None

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def to_failure(self) -> Failure:
        """Return the error as an event, for a stream that has already started."""
        return Failure(kind=self.kind, message=_shorten(self.message), param=self.param)


class ClientError(DovetailError):
    kind = "invalid_request"


class InvalidRequest(ClientError):
    kind = "invalid_request"


class Unauthenticated(ClientError):
    kind = "unauthenticated"


class Forbidden(ClientError):
    kind = "forbidden"


class NotFound(ClientError):
    kind = "not_found"


class ResponseNotFound(ClientError):
    kind = "response_not_found"


class PreviousResponseNotFound(ClientError):
    kind = "previous_not_found"


class RequestTooLarge(ClientError):
    kind = "too_large"


class ContextOverflow(ClientError):
    kind = "context_overflow"


class RateLimited(ClientError):
    kind = "rate_limited"


class BudgetExceeded(ClientError):
    kind = "budget_exceeded"


class Unsupported(ClientError):
    kind = "unsupported"


class EngineError(DovetailError):
    kind = "engine"


class InvalidEngineResponse(EngineError):
    kind = "engine_response"


class EngineUnavailable(EngineError):
    kind = "engine_unavailable"


class EngineTimeout(EngineError):
    kind = "engine_timeout"


class Overloaded(EngineError):
    kind = "overloaded"


class InternalError(DovetailError):
    kind = "internal"


def error_from_failure(failure: Failure) -> DovetailError:
    """Convert a failure event to its error, for a response that has not started yet."""
    kinds = {kind.kind: kind for kind in _leaf_kinds(DovetailError) if "kind" in vars(kind)}
    kind = kinds.get(failure.kind, InternalError)
    return kind(failure.message, param=failure.param)


def _leaf_kinds(kind: type[DovetailError]) -> list[type[DovetailError]]:
    """Return all subclasses; if several share a `kind` string, the most general comes first."""
    below = [leaf for child in kind.__subclasses__() for leaf in _leaf_kinds(child)]
    return [kind, *below] if kind is not DovetailError else below


def _shorten(message: str) -> str:
    """Remove the middle of a message that is too long: its end may name the remedy."""
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    half = MAX_MESSAGE_CHARS // 2
    return f"{message[:half]} ... {message[-half:]}"
