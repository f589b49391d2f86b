"""Bytes of an engine's answer, read without IO: HTTP's frame taken off, events taken apart.

A stream has a frame for every token, and this is passed by each of them: the parser is
`httptools`' compiled one, and the data of events stay bytes.
"""

import httptools

#: Bytes of status line and headers that are read before the answer is called nonsense.
MAX_HEAD_BYTES = 1 << 18


class ResponseParser:
    """One answer. `begun` once its head has come, `complete` once its body has ended."""

    __slots__ = (
        "_parser",
        "_parts",
        "_head_bytes",
        "head_complete",
        "complete",
        "headers",
        "status",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._head_bytes = 0
        self.head_complete = False
        self.complete = False
        self.headers: dict[str, str] = {}
        self.status = 0

    def feed(self, data: bytes) -> bytes:
        """Takes what was read, and gives the part of the body that is in it.

        Raises `ValueError` with what is wrong with it.
        """
        if not self.head_complete:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as fault:
            if not self.complete:  # what comes behind an answer is nobody's
                raise ValueError(str(fault)) from fault
        if not self.head_complete and self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("its head does not end")
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return body

    def close(self) -> None:
        """The connection has ended. Raises `ValueError` if the answer has not."""
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if not self.head_complete or (framed and not self.complete):
            raise ValueError("the connection was closed in the middle")
        self.complete = True

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_complete:  # trailers are not wanted
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.complete:
            return  # a second answer, that nobody asked for
        self.status = self._parser.get_status_code()
        if self.status < 200:  # "continue": the answer comes behind it
            self.headers.clear()
        else:
            self.head_complete = True

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        self.complete = self.head_complete


class SseDataReader:
    """The data of server-sent events, in any pieces. Names and comments are passed over."""

    __slots__ = ("_data", "_line")

    def __init__(self) -> None:
        self._line: list[bytes] = []  # a line that has not ended, in pieces
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of all events that this piece completes."""
        if not self._line and not self._data and piece.startswith(b"data: "):
            whole = piece[6:-2].split(b"\n\ndata: ")
            # Nothing but whole events of one line each: what nearly every piece is.
            if (
                piece.endswith(b"\n\n")
                and piece.count(b"\n") == 2 * len(whole)
                and b"\r" not in piece
            ):
                return whole
        return self._split_lines(piece)

    def _split_lines(self, piece: bytes) -> list[bytes]:
        if b"\n" not in piece:
            self._line.append(piece)
            return []
        if self._line:
            piece = b"".join([*self._line, piece])
        *lines, rest = piece.split(b"\n")
        self._line = [rest] if rest else []
        found: list[bytes] = []
        data = self._data
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif data and not line:
                found.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
        return found
