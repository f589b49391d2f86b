"""How many requests are worked on at once."""

from collections.abc import Iterator
from contextlib import contextmanager

from dovetail_model import DovetailError, Overloaded, RateLimited
from dovetail_protocols import MESSAGES, Codec

RETRY_AFTER = 2.0  # seconds


class Admission:
    """Lets in as many as there is room for."""

    __slots__ = ("_most", "inside")

    def __init__(self, most: int) -> None:
        self._most = most
        self.inside = 0

    @contextmanager
    def enter(self, codec: Codec) -> Iterator[None]:
        """Room for one request, for as long as it lasts."""
        if self.inside >= self._most:
            raise busy(codec)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1


def busy(codec: Codec) -> DovetailError:
    """That there is no room, in the kind that this API's clients come back after."""
    kind = Overloaded if codec is MESSAGES else RateLimited
    return kind("The server is at its limit of concurrent requests.", retry_after=RETRY_AFTER)
