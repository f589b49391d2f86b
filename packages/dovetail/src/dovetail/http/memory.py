"""What this process holds of requests, in bytes: bodies and messages, until they are answered.

A request is counted by the size of its body, decompressed and with all that it goes on from, until
it is over. What is made of a body (text, tokens, an answer) takes several times its size.
"""

from collections import Counter

from dovetail.http.errors import HttpError
from dovetail.http.exchange import ApiExchange

RETRY_AFTER_SECONDS = 2.0  # seconds


class MemoryLimitReached(HttpError):
    """Too much is held already. All clients come back after this one."""

    kind = "engine_unavailable"
    reason = "held_bytes"
    status = 503


class RequestMemory:
    """The bytes of all clients. `most` may be held; by default, so many of the largest bodies.

    `of` has what requests of each tenant hold: one with a name may have no more than half.
    """

    total_bytes = 0
    max_bytes: int | None = None
    max_bodies = 16  # of the largest size, where `max_bytes` is None
    small_request_bytes = 64 << 10  # their number is limited elsewhere

    def __init__(self) -> None:
        self.bytes_by_tenant: Counter[str] = Counter()

    def is_exceeded_by(self, size: int, limit: int, tenant: str = "") -> bool:
        """Whether a request of this size, which is counted already, is one too many.

        Each may have so many bytes as the limit says: one alone is never too much. Neither are
        small ones, so that those who send much do not shut out all others.
        """
        if size <= self.small_request_bytes:
            return False
        most = self.max_bodies * limit if self.max_bytes is None else max(self.max_bytes, limit)
        return self.total_bytes > most or (
            tenant != "" and self.bytes_by_tenant[tenant] > max(most // 2, limit)
        )


request_memory = RequestMemory()


def reserve_memory(exchange: ApiExchange, size: int, limit: int) -> None:
    """A request takes so many bytes now, until it is over. Raises where there is no room for it."""
    _set_held_bytes(exchange, size)
    if request_memory.is_exceeded_by(size, limit, exchange.tenant):
        raise MemoryLimitReached(
            "Too much is being asked at once.", retry_after=RETRY_AFTER_SECONDS
        )


def release_memory(exchange: ApiExchange) -> None:
    """The request is over."""
    _set_held_bytes(exchange, 0)


def _set_held_bytes(exchange: ApiExchange, size: int) -> None:
    more, tenant = size - exchange.held_bytes, exchange.tenant
    exchange.held_bytes = size
    request_memory.total_bytes += more
    if tenant:
        request_memory.bytes_by_tenant[tenant] += more
        if not request_memory.bytes_by_tenant[tenant]:
            del request_memory.bytes_by_tenant[tenant]
