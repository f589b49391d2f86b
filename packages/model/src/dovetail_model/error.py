"""Errors, and whose fault they are.

    DovetailError
    ├── ClientError        the request is at fault
    │   ├── InvalidRequest     a field is wrong or missing (param says which)
    │   ├── Unauthenticated    no key, or not one of ours
    │   ├── Forbidden          a key, but not for this
    │   ├── NotFound           no such model or route
    │   ├── ResponseNotFound   no such response is stored
    │   ├── PreviousResponseNotFound   `previous_response_id` is not stored
    │   ├── RequestTooLarge    the body is over the limit
    │   ├── ContextOverflow    the prompt does not fit the model's window
    │   ├── RateLimited        too many requests for this key
    │   └── Unsupported        understood, and not offered
    ├── EngineError        the model server is at fault
    │   ├── EngineUnavailable  it cannot be reached, or died
    │   ├── EngineTimeout      it did not respond in time
    │   └── Overloaded         it has no capacity left
    └── InternalError      we are at fault

Each protocol codec has one table from `kind` to its own status and type; nothing else about an
error depends on the API. In the middle of a stream an error is a `Failure` event.
"""

from dovetail_model.event import Failure


class DovetailError(Exception):
    """Never raised itself: raise one of the kinds below.

    `reason` is a word that is more specific than the kind, for operators. Clients do not see it.
    """

    kind: str = "internal"
    reason: str | None = None

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def to_failure(self) -> Failure:
        """The same error as an event, for a stream that has already begun."""
        return Failure(kind=self.kind, message=self.message, param=self.param)


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


class Unsupported(ClientError):
    kind = "unsupported"


class EngineError(DovetailError):
    kind = "engine"


class EngineUnavailable(EngineError):
    kind = "engine_unavailable"


class EngineTimeout(EngineError):
    kind = "engine_timeout"


class Overloaded(EngineError):
    kind = "overloaded"


class InternalError(DovetailError):
    kind = "internal"


def error_from_failure(failure: Failure) -> DovetailError:
    """Convert a failure event to its error, for a response that has not begun yet."""
    kinds = {kind.kind: kind for kind in _leaf_kinds(DovetailError) if "kind" in vars(kind)}
    kind = kinds.get(failure.kind, InternalError)
    return kind(failure.message, param=failure.param)


def _leaf_kinds(kind: type[DovetailError]) -> list[type[DovetailError]]:
    """The kinds below, the most general of each name last."""
    below = [leaf for child in kind.__subclasses__() for leaf in _leaf_kinds(child)]
    return [kind, *below] if kind is not DovetailError else below
