"""The frames of an engine's stream, told to a listener as deltas."""

from collections.abc import Callable

from dovetail.engines.engine import Listener, TokenDelta
from dovetail.net.incoming import SseDataReader

#: Makes a delta of the data of events that came together; None while there is nothing to tell.
Read = Callable[[list[bytes]], TokenDelta | None]


class Telling:
    """One stream. `over` once its last delta was told, or nobody wants any more."""

    __slots__ = ("_feed", "_hear", "_listener", "_read", "over")

    def __init__(self, read: Read, listener: Listener) -> None:
        self._feed = SseDataReader().feed
        self._read = read
        self._hear = listener.hear
        self._listener = listener
        self.over = False

    def take(self, data: bytes) -> bool:
        """Runs for every token. Whether more may follow at once."""
        payloads = self._feed(data)
        delta = self._read(payloads) if payloads else None
        if delta is None:
            return True
        more = self._hear(delta)
        if delta.finish is None:
            return more
        self.over = True
        return False

    async def wait(self) -> bool:
        """Whether there is to be more, once there is room for it."""
        if not self.over:
            self.over = not await self._listener.wait()
        return not self.over
