"""What is sent to a client, kept for a trace with payloads: for debugging, and slower."""

from dovetail.http.exchange import ApiExchange
from dovetail.net.exchange import DIRECT_WRITER_EXTENSION, Message

MAX_PAYLOAD_BYTES = 1 << 20  # bytes of a request's body, and of an answer, that are kept


class PayloadCapture:
    """Stands between an exchange and its client. Every byte has to come by: nothing goes direct."""

    __slots__ = ("_chunks", "_send", "_size")

    def __init__(self, exchange: ApiExchange) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._send = exchange.send
        exchange.send = self._forward
        others = exchange.extensions.items()
        exchange.extensions = {
            name: value for name, value in others if name != DIRECT_WRITER_EXTENSION
        }

    @property
    def response_body(self) -> bytes:
        """The beginning of what was sent."""
        return b"".join(self._chunks)

    async def _forward(self, message: Message) -> None:
        body = message.get("body") or b""
        if body and self._size < MAX_PAYLOAD_BYTES:
            self._chunks.append(body[: MAX_PAYLOAD_BYTES - self._size])
            self._size += len(self._chunks[-1])
        await self._send(message)
