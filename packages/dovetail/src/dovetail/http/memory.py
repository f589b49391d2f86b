"""Limit the memory of requests in this process: bodies and messages until their requests finish.

A request is counted until it has finished, by the size of its decompressed body including the
conversation that it continues. The objects derived from a body (text, tokens, a response) take
several times its size.
"""

import asyncio
import ctypes
import threading
from collections import Counter

from dovetail.access.admission import RETRY_AFTER_SECONDS
from dovetail.http.errors import HttpError
from dovetail.http.exchange import ApiExchange

_MIN_TRIMMED_BYTES = 8 << 20
_TRIM_DELAY_SECONDS = 0.2  # until the objects of the request are freed
_OUTPUT_TRIM_DELAY_SECONDS = 2.0  # until the turn is recorded
_OUTPUT_TOKEN_BYTES = 64  # of the token's id and text, and of the recorded turn
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
_trimming = threading.Lock()


class MemoryLimitReached(HttpError):
    """The memory limit is reached. Clients retry after this error."""

    kind = "engine_unavailable"
    reason = "held_bytes"
    status = 503


class RequestMemory:
    """Bytes of the requests of all clients.

    max_bytes: Limit; None means `max_bodies` bodies of the largest size.
    bytes_by_tenant: Bytes of each tenant. A tenant with a name may use at most half of the limit.
    long_output_bytes: Bytes of long outputs since memory was last returned to the system.
    """

    total_bytes = 0
    max_bytes: int | None = None
    max_bodies = 16  # of the largest size, if `max_bytes` is None
    small_request_bytes = 64 << 10  # smaller requests are limited by number, elsewhere
    long_output_bytes = 0
    long_output_tokens = 4 << 10  # shorter outputs leave little, and returning memory takes time

    def __init__(self) -> None:
        self.bytes_by_tenant: Counter[str] = Counter()

    def is_exceeded_by(self, size: int, limit: int, tenant: str = "") -> bool:
        """Return whether a request of this size, which is already counted, exceeds the limit.

        A single request may always have `limit` bytes. Small requests are always admitted, so that
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
    """Reserve memory for a request until it has finished. Raises if the limit is exceeded."""
    _set_held_bytes(exchange, size)
    if request_memory.is_exceeded_by(size, limit, exchange.tenant):
        raise MemoryLimitReached(
            "Request memory limit reached; retry later.", retry_after=RETRY_AFTER_SECONDS
        )


def release_memory(exchange: ApiExchange, output_tokens: int = 0) -> None:
    """Release the memory of a finished request.

    After a large one, and after many long outputs, memory is also returned to the system: the
    allocator would keep what one client used once.
    """
    size = exchange.held_bytes
    _set_held_bytes(exchange, 0)
    if output_tokens >= request_memory.long_output_tokens:
        request_memory.long_output_bytes += output_tokens * _OUTPUT_TOKEN_BYTES
    if _malloc_trim is None:
        return
    if size >= _MIN_TRIMMED_BYTES:
        asyncio.get_running_loop().call_later(_TRIM_DELAY_SECONDS, _trim_in_thread)
    if request_memory.long_output_bytes >= _MIN_TRIMMED_BYTES:
        request_memory.long_output_bytes = 0
        asyncio.get_running_loop().call_later(_OUTPUT_TRIM_DELAY_SECONDS, _trim_in_thread)


def _trim_in_thread() -> None:
    """Return free memory to the system, once for all requests that finished lately."""
    if not _trimming.locked():
        asyncio.get_running_loop().run_in_executor(None, _trim)


def _trim() -> None:
    if _malloc_trim is not None:
        with _trimming:
            _malloc_trim(0)  # other threads run meanwhile


def _set_held_bytes(exchange: ApiExchange, size: int) -> None:
    increase, tenant = size - exchange.held_bytes, exchange.tenant
    exchange.held_bytes = size
    request_memory.total_bytes += increase
    if tenant:
        request_memory.bytes_by_tenant[tenant] += increase
        if not request_memory.bytes_by_tenant[tenant]:
            del request_memory.bytes_by_tenant[tenant]
