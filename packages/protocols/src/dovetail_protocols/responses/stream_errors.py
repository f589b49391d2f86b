"""Errors that clients of the Responses API handle only inside a stream."""

from math import ceil

from dovetail_model import ContextOverflow, DovetailError, Failure, RateLimited, Request
from dovetail_protocols.codec import Clock, Headers, IdFactory
from dovetail_protocols.responses.decode import decode
from dovetail_protocols.responses.encode import ResponsesEncoder
from dovetail_protocols.responses.raw_body import minimal_body


class ResponsesStreamErrors:
    """Context overflow and rate limits: Codex compacts its conversation, or waits and retries.

    It does so only for errors inside a stream; it treats the same error as a status as final.
    """

    def covers(self, error: DovetailError) -> bool:
        return isinstance(error, ContextOverflow | RateLimited)

    def decode(self, body: bytes, headers: Headers) -> Request:
        """Decode the body without its input."""
        return decode(minimal_body(body), headers)

    def encode(self, request: Request, error: DovetailError, ids: IdFactory, clock: Clock) -> bytes:
        """Encode the complete stream. Clients read the time to wait from the message."""
        failure = error.to_failure()
        if error.retry_after is not None and "try again in" not in failure.message:
            # In tenths, rounded up: a client that retries earlier is rejected again.
            seconds = ceil(round(error.retry_after * 10, 3)) / 10
            message = f"{failure.message} Please try again in {seconds:g}s."
            failure = Failure(failure.kind, message, failure.param)
        return ResponsesEncoder(request, ids, clock).encode([failure])
