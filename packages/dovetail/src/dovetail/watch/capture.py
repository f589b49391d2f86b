"""Reconstruct the exchanges on one connection from the bytes of both directions.

The client's bytes are parsed as by a server, and the server's as by a client; the bytes that either
parser would send are discarded. Thus responses without bodies, early responses, persistent
connections and pipelined requests are recognized by the rules of HTTP, not by heuristics.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, time

import h11

from dovetail.http.body import decode_content
from dovetail.watch.exchange import CapturedExchange, find_codec, redact_headers, redact_target
from dovetail.watch.relay import RelayDirection

_EPOCH_OFFSET = time() - monotonic()


class UnobservableError(Exception):
    """Raised if a connection can no longer be observed; the message is the reason."""


@dataclass(frozen=True)
class CaptureLimits:
    """Limits in bytes: of a body, of the queue, of a head."""

    body_bytes: int = 64 << 20
    queue_bytes: int = 256 << 20
    head_bytes: int = 256 << 10


class _PendingExchange:
    """An exchange that is not finished."""

    __slots__ = (
        "began",
        "body_bytes",
        "is_generation",
        "marks",
        "request_body",
        "request_completed_at",
        "request_head",
        "response_body",
        "response_bytes",
        "response_complete",
        "response_head",
    )

    def __init__(self, request: h11.Request, at: float) -> None:
        self.request_head = request
        self.began = at
        self.request_body: list[bytes] = []
        self.response_body: list[bytes] = []
        self.is_generation = find_codec(request.method.decode("latin-1"), self.target) is not None
        self.body_bytes = 0  # of both bodies
        self.response_bytes = 0
        self.response_head: h11.Response | None = None
        self.request_completed_at: float | None = None
        self.response_complete = False
        self.marks: list[tuple[float, int]] = []

    @property
    def target(self) -> str:
        return self.request_head.target.decode("latin-1")


class ConnectionCapture:
    """Captures the exchanges of one connection."""

    def __init__(self, limits: CaptureLimits, next_number: Callable[[], int]) -> None:
        self._limits = limits
        self._next_number = next_number
        self._client_parser = h11.Connection(h11.SERVER, limits.head_bytes)
        self._server_parser = h11.Connection(h11.CLIENT, limits.head_bytes)
        self._pipelined_bytes = 0
        self._pending: _PendingExchange | None = None
        self._finished: list[CapturedExchange | None] = []
        self._closed = False

    def feed(
        self, direction: RelayDirection, data: bytes, at: float
    ) -> Sequence[CapturedExchange | None]:
        """Return the exchanges that these bytes complete; None for other than generation requests.

        Raises if the bytes are not HTTP as supported here.
        """
        if self._closed:
            return ()
        if direction == "request":
            self._pipelined_bytes = (
                self._pipelined_bytes + len(data) if self._awaits_response() else 0
            )
            if self._pipelined_bytes > self._limits.body_bytes:
                raise UnobservableError("the client pipelined too many bytes")
            self._client_parser.receive_data(data)
        elif self._pending is None:
            raise UnobservableError("the server sent data before a request")
        else:
            self._server_parser.receive_data(data)
        return self._parse(at)

    def close(self, at: float) -> Sequence[CapturedExchange | None]:
        """End the capture: a response without a length is complete, any other is truncated."""
        if self._closed or self._pending is None:
            return ()
        pending = self._pending
        if pending.response_head is not None and not pending.response_complete:
            try:
                self._server_parser.receive_data(b"")
                self._read_server(pending, at)
            except h11.RemoteProtocolError:
                pass
        self._closed = True
        self._finish(pending, at, truncated=not pending.response_complete)
        return self._pop_finished()

    def _awaits_response(self) -> bool:
        return self._pending is not None and self._pending.request_completed_at is not None

    def _parse(self, at: float) -> Sequence[CapturedExchange | None]:
        while not self._closed:
            if self._pending is None or self._pending.request_completed_at is None:
                self._read_client(at)
            pending = self._pending
            if pending is None:
                break
            self._read_server(pending, at)
            if not (pending.response_complete and pending.request_completed_at is not None):
                break
            self._finish(pending, at, truncated=False)
            self._start_next_cycle()
        return self._pop_finished()

    def _pop_finished(self) -> list[CapturedExchange | None]:
        finished, self._finished = self._finished, []
        return finished

    def _read_client(self, at: float) -> None:
        while True:
            event = self._client_parser.next_event()
            match event:
                case h11.Request():
                    self._pending = _PendingExchange(event, at)
                    self._expect_response(event)
                case h11.Data() if self._pending is not None:
                    self._append_body(self._pending.request_body, bytes(event.data))
                case h11.EndOfMessage() if self._pending is not None:
                    self._pending.request_completed_at = at
                    return
                case _:
                    return

    def _expect_response(self, event: h11.Request) -> None:
        """Prepare to parse the response to a request: only its method and upgrade matter."""
        if event.method == b"CONNECT":
            raise UnobservableError("the connection became a tunnel")
        headers = [("host", "-"), ("content-length", "0")]
        if any(name == b"upgrade" for name, _ in event.headers):
            headers += [("connection", "upgrade"), ("upgrade", "-")]
        self._server_parser.send(h11.Request(method=event.method, target="/", headers=headers))
        self._server_parser.send(h11.EndOfMessage())

    def _read_server(self, pending: _PendingExchange, at: float) -> None:
        while not pending.response_complete:
            event = self._server_parser.next_event()
            match event:
                case h11.InformationalResponse(status_code=101):
                    raise UnobservableError("the connection was upgraded to another protocol")
                case h11.InformationalResponse():
                    continue
                case h11.Response():
                    pending.response_head = event
                case h11.Data():
                    self._append_body(pending.response_body, bytes(event.data))
                    if pending.is_generation:
                        pending.marks.append((at - pending.began, pending.response_bytes))
                case h11.EndOfMessage():
                    pending.response_complete = True
                case _:
                    return

    def _append_body(self, parts: list[bytes], data: bytes) -> None:
        """Append a part of a body. Only bodies of generation requests are stored."""
        pending = self._pending
        assert pending is not None
        if not pending.is_generation:
            return
        parts.append(data)
        pending.body_bytes += len(data)
        if parts is pending.response_body:
            pending.response_bytes += len(data)
        if pending.body_bytes > self._limits.body_bytes:
            raise UnobservableError("a body is too large")

    def _start_next_cycle(self) -> None:
        """Prepare for the next request of the connection, if there can be one."""
        self._pending = None
        try:
            self._client_parser.send(
                h11.Response(status_code=200, headers=[("content-length", "0")])
            )
            self._client_parser.send(h11.EndOfMessage())
            self._client_parser.start_next_cycle()
            self._server_parser.start_next_cycle()
        except h11.LocalProtocolError:
            self._closed = True  # one side has announced that it will close

    def _finish(self, pending: _PendingExchange, at: float, *, truncated: bool) -> None:
        method = pending.request_head.method.decode("latin-1")
        if not pending.is_generation:
            self._finished.append(None)
            return
        request_headers = redact_headers(pending.request_head.headers)
        response_headers = (
            redact_headers(pending.response_head.headers)
            if pending.response_head is not None
            else {}
        )
        response = b"".join(pending.response_body)
        coding = response_headers.pop("content-encoding", "")
        self._finished.append(
            CapturedExchange(
                number=self._next_number(),
                method=method,
                target=redact_target(pending.target),
                began=_EPOCH_OFFSET + pending.began,
                request_received=(pending.request_completed_at or at) - pending.began,
                ended=at - pending.began,
                status=pending.response_head.status_code
                if pending.response_head is not None
                else 0,
                request_headers=request_headers,
                response_headers=response_headers,
                request=self._decode_content(
                    b"".join(pending.request_body), request_headers.pop("content-encoding", "")
                ),
                response=response if truncated else self._decode_content(response, coding),
                marks=() if coding else tuple(pending.marks),
                truncated=truncated,
            )
        )

    def _decode_content(self, body: bytes, coding: str) -> bytes:
        return decode_content(body, coding, self._limits.body_bytes) if coding else body
