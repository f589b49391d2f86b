"""Parse HTTP responses."""

import httptools

#: Maximum size of the status line and headers, and of any other data without a byte of a body, such
#: as trailers. A response with more is invalid.
MAX_HEAD_BYTES = 1 << 18


class ResponseParser:
    """Parse one HTTP response incrementally.

    head_complete: Whether status and headers have arrived.
    complete: Whether the body has ended.
    keeps_alive: Whether the connection can carry another request after a complete response.
    """

    __slots__ = (
        "_head_bytes",
        "_parser",
        "_parts",
        "complete",
        "head_complete",
        "headers",
        "keeps_alive",
        "status",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._head_bytes = 0
        self.head_complete = False
        self.complete = False
        self.keeps_alive = False
        self.headers: dict[str, str] = {}
        self.status = 0

    @property
    def has_begun(self) -> bool:
        """Whether a part of the head has arrived."""
        return self.head_complete or self._head_bytes > 0

    def feed(self, data: bytes) -> bytes:
        """Parse received bytes and return the part of the body that they contain.

        Raises `ValueError` on a protocol error.
        """
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:  # data after the response is ignored
                raise ValueError(str(error)) from error
            self.keeps_alive = False
        parts = self._parts
        if not parts:
            self._count_head_bytes(len(data))
            return b""
        self._head_bytes = 0
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return body

    def _count_head_bytes(self, count: int) -> None:
        """Limit the data without a byte of a body, which the parser buffers."""
        self._head_bytes += count
        if self._head_bytes > MAX_HEAD_BYTES and not self.complete:
            name = "trailers" if self.head_complete else "status and headers"
            raise ValueError(f"{name} are larger than {MAX_HEAD_BYTES} bytes")

    def close(self) -> None:
        """End the input when the connection closes. Raises `ValueError` if data is missing."""
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if not self.head_complete or (framed and not self.complete):
            raise ValueError("the connection was closed")
        self.complete = True

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_complete:  # trailers are ignored
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.complete:
            self.keeps_alive = False
            return  # a second response, for which there is no request
        self.status = self._parser.get_status_code()
        if self.status < 200:  # an informational status such as 100: the response follows
            self.headers.clear()
        else:
            self.head_complete = True

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        if self.head_complete and not self.complete:
            self.complete = True
            self.keeps_alive = self._parser.should_keep_alive()
