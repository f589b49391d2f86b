"""What is sent to a client, kept for a trace with payloads: for debugging, and slower."""

from dovetail.http.exchange import Exchange
from dovetail.net.asgi import Message
from dovetail.net.direct import DIRECT_WRITER_EXTENSION

MOST = 1 << 20  # bytes of a request's body, and of an answer, that are kept


class Capture:
    """Stands between an exchange and its client. Every byte has to come by: nothing goes direct."""

    __slots__ = ("_kept", "_send", "_size")

    def __init__(self, exchange: Exchange) -> None:
        self._kept: list[bytes] = []
        self._size = 0
        self._send = exchange.send
        exchange.send = self._pass_on
        others = exchange.extensions.items()
        exchange.extensions = {name: value for name, value in others if name != DIRECT_WRITER_EXTENSION}

    @property
    def answer(self) -> bytes:
        """The beginning of what was sent."""
        return b"".join(self._kept)

    async def _pass_on(self, message: Message) -> None:
        body = message.get("body") or b""
        if body and self._size < MOST:
            self._kept.append(body[: MOST - self._size])
            self._size += len(self._kept[-1])
        await self._send(message)
