"""Memory of requests in this process, in bytes: bodies and messages until their requests finish.

A request is counted by the size of its body, decompressed and with the conversation that it
continues, until it has finished. What is made of a body (text, tokens, a response) takes several
times its size.
"""

from collections import Counter

from dovetail.access.admission import RETRY_AFTER_SECONDS
from dovetail.http.errors import HttpError
from dovetail.http.exchange import ApiExchange


class MemoryLimitReached(HttpError):
    """The memory limit is reached. Clients retry after this error."""

    kind = "engine_unavailable"
    reason = "held_bytes"
    status = 503


class RequestMemory:
    """Bytes of the requests of all clients.

    max_bytes: Limit; None stands for a number of bodies of the largest size.
    bytes_by_tenant: Bytes of each tenant. A tenant with a name may have no more than half.
    """

    total_bytes = 0
    max_bytes: int | None = None
    max_bodies = 16  # of the largest size, where `max_bytes` is None
    small_request_bytes = 64 << 10  # their number is limited elsewhere

    def __init__(self) -> None:
        self.bytes_by_tenant: Counter[str] = Counter()

    def is_exceeded_by(self, size: int, limit: int, tenant: str = "") -> bool:
        """Return whether a request of this size, which is counted already, is one too many.

        A single request may always have `limit` bytes. Small ones are always admitted, so that
        clients with large requests do not lock out all others.
        """
        if size <= self.small_request_bytes:
            return False
        max_bytes = (
            self.max_bodies * limit if self.max_bytes is None else max(self.max_bytes, limit)
        )
        return self.total_bytes > max_bytes or (
            tenant != "" and self.bytes_by_tenant[tenant] > max(max_bytes // 2, limit)
        )


request_memory = RequestMemory()


def reserve_memory(exchange: ApiExchange, size: int, limit: int) -> None:
    """Set the bytes of a request until it has finished. Raises where there is no room for them."""
    _set_held_bytes(exchange, size)
    if request_memory.is_exceeded_by(size, limit, exchange.tenant):
        raise MemoryLimitReached(
            "Too much is being asked at once.", retry_after=RETRY_AFTER_SECONDS
        )


def release_memory(exchange: ApiExchange) -> None:
    """Release the bytes of a finished request."""
    _set_held_bytes(exchange, 0)


def _set_held_bytes(exchange: ApiExchange, size: int) -> None:
    increase, tenant = size - exchange.held_bytes, exchange.tenant
    exchange.held_bytes = size
    request_memory.total_bytes += increase
    if tenant:
        request_memory.bytes_by_tenant[tenant] += increase
        if not request_memory.bytes_by_tenant[tenant]:
            del request_memory.bytes_by_tenant[tenant]
