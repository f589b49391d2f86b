"""Send large response bodies in chunks, and limit how many bytes wait for slow clients."""

from dovetail.access.admission import RETRY_AFTER_SECONDS
from dovetail.http.exchange import ApiExchange
from dovetail.net.exchange import JSON_CONTENT_TYPE
from dovetail_model import Overloaded

_CHUNK_BYTES = 1 << 18  # sent at a time
_MAX_BODIES = 16  # of the largest size: unread bodies occupy memory


class LargeBodySender:
    """Sends JSON bodies of up to `max_body_bytes`, and counts the large ones of all clients."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_total_bytes = _MAX_BODIES * max_body_bytes
        self._sending_bytes = 0

    async def send(self, exchange: ApiExchange, body: bytes) -> None:
        """Send a body. Raises `Overloaded` if too many large ones are being sent."""
        if len(body) <= _CHUNK_BYTES:
            await exchange.respond(200, body)
            return
        if self._sending_bytes + len(body) > self._max_total_bytes:
            raise Overloaded(
                "Too many large response bodies are being sent; retry later.",
                retry_after=RETRY_AFTER_SECONDS,
            )
        self._sending_bytes += len(body)
        try:
            length = ("content-length", str(len(body)))
            await exchange.start_response(200, JSON_CONTENT_TYPE, [length])
            for at in range(0, len(body), _CHUNK_BYTES):
                send = exchange.write if at + _CHUNK_BYTES < len(body) else exchange.end
                await send(body[at : at + _CHUNK_BYTES])
        finally:
            self._sending_bytes -= len(body)
