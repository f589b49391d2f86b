"""What this process holds of requests, in bytes: bodies and messages, until they are answered.

A request is counted by the size of its body, decompressed and with all that it goes on from, until
it is over. What is made of a body (text, tokens, an answer) takes several times its size.
"""

from collections import Counter

from dovetail.http.errors import HttpError
from dovetail.http.exchange import Exchange

_MOST_BODIES = 16  # of the largest size, where nothing else is said
_SMALL = 64 << 10  # bytes: how many of these there can be is bounded by their number
RETRY_AFTER = 2.0  # seconds


class NoRoom(HttpError):
    """Too much is held already. All clients come back after this one."""

    kind = "engine_unavailable"
    reason = "held_bytes"
    status = 503


class Held:
    """The bytes of all clients. `most` may be held; by default, so many of the largest bodies.

    `of` has what requests of each tenant hold: one with a name may have no more than half.
    """

    size = 0
    most: int | None = None

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def is_too_much(self, size: int, limit: int, tenant: str = "") -> bool:
        """Whether a request of this size, which is counted already, is one too many.

        Each may have so many bytes as the limit says: one alone is never too much. Neither are
        small ones, so that those who send much do not shut out all others.
        """
        if size <= _SMALL:
            return False
        most = _MOST_BODIES * limit if self.most is None else max(self.most, limit)
        return self.size > most or (tenant != "" and self.of[tenant] > max(most // 2, limit))


held = Held()


def hold(exchange: Exchange, size: int, limit: int) -> None:
    """A request takes so many bytes now, until it is over. Raises where there is no room for it."""
    _count(exchange, size)
    if held.is_too_much(size, limit, exchange.tenant):
        raise NoRoom("Too much is being asked at once.", retry_after=RETRY_AFTER)


def release(exchange: Exchange) -> None:
    """The request is over."""
    _count(exchange, 0)


def _count(exchange: Exchange, size: int) -> None:
    more, tenant = size - exchange.held, exchange.tenant
    exchange.held = size
    held.size += more
    if tenant:
        held.of[tenant] += more
        if not held.of[tenant]:
            del held.of[tenant]
