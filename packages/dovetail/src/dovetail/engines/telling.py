"""The frames of an engine's stream, told to a listener as deltas."""

from collections.abc import Callable

from dovetail.engines.engine import TokenDelta, TokenSink
from dovetail.net.client_connection import SseDataReader

#: Makes a delta of the data of events that came together; None while there is nothing to tell.
DecodeDelta = Callable[[list[bytes]], TokenDelta | None]


class TokenStreamReader:
    """One stream. `over` once its last delta was told, or nobody wants any more."""

    __slots__ = ("_feed", "_push", "_sink", "_decode", "finished")

    def __init__(self, decode: DecodeDelta, sink: TokenSink) -> None:
        self._feed = SseDataReader().feed
        self._decode = decode
        self._push = sink.push
        self._sink = sink
        self.finished = False

    def push(self, data: bytes) -> bool:
        """Runs for every token. Whether more may follow at once."""
        payloads = self._feed(data)
        delta = self._decode(payloads) if payloads else None
        if delta is None:
            return True
        more = self._push(delta)
        if delta.finish is None:
            return more
        self.finished = True
        return False

    async def drain(self) -> bool:
        """Whether there is to be more, once there is room for it."""
        if not self.finished:
            self.finished = not await self._sink.drain()
        return not self.finished
