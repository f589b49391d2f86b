"""Finds the exchanges on one connection, by listening to both of its directions.

To the client's bytes it listens as a server would, to the server's as a client: what either would
have to send is worked out and thrown away. So answers without bodies, answers that come early,
kept connections and requests sent ahead are told apart by the rules of HTTP, not by guesses.
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
    """Why a connection is looked at no more."""


@dataclass(frozen=True)
class CaptureLimits:
    """Bytes: of a body, of what waits to be looked at, of a head."""

    body_bytes: int = 64 << 20
    queue_bytes: int = 256 << 20
    head_bytes: int = 256 << 10


class _PendingExchange:
    """An exchange in the making."""

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

    def __init__(self, asked: h11.Request, at: float) -> None:
        self.request_head = asked
        self.began = at
        self.request_body: list[bytes] = []
        self.response_body: list[bytes] = []
        self.is_generation = find_codec(asked.method.decode("latin-1"), self.target) is not None
        self.body_bytes = 0  # bytes of both bodies
        self.response_bytes = 0  # bytes of the answer
        self.response_head: h11.Response | None = None
        self.request_completed_at: float | None = None  # when the request was complete
        self.response_complete = False
        self.marks: list[tuple[float, int]] = []

    @property
    def target(self) -> str:
        return self.request_head.target.decode("latin-1")


class ConnectionCapture:
    """One connection."""

    def __init__(self, limits: CaptureLimits, next_number: Callable[[], int]) -> None:
        self._limits = limits
        self._next_number = next_number
        self._client_parser = h11.Connection(h11.SERVER, limits.head_bytes)
        self._server_parser = h11.Connection(h11.CLIENT, limits.head_bytes)
        self._pipelined_bytes = 0  # bytes of requests that were sent ahead
        self._pending: _PendingExchange | None = None
        self._finished: list[CapturedExchange | None] = []
        self._closed = False

    def feed(
        self, direction: RelayDirection, data: bytes, at: float
    ) -> Sequence[CapturedExchange | None]:
        """The exchanges that these bytes complete; None for one that no model answers.

        Raises where the bytes are not HTTP as we know it.
        """
        if self._closed:
            return ()
        if direction == "asked":
            self._pipelined_bytes = (
                self._pipelined_bytes + len(data) if self._awaits_response() else 0
            )
            if self._pipelined_bytes > self._limits.body_bytes:
                raise UnobservableError("requests were sent too far ahead")
            self._client_parser.receive_data(data)
        elif self._pending is None:
            raise UnobservableError("the server spoke before it was asked")
        else:
            self._server_parser.receive_data(data)
        return self._parse(at)

    def close(self, at: float) -> Sequence[CapturedExchange | None]:
        """The connection has ended: an answer without a length is complete, another one cut."""
        if self._closed or self._pending is None:
            return ()
        draft = self._pending
        if draft.response_head is not None and not draft.response_complete:
            try:
                self._server_parser.receive_data(b"")
                self._read_server(draft, at)
            except h11.RemoteProtocolError:
                pass
        self._closed = True
        self._finish(draft, at, cut=not draft.response_complete)
        return self._pop_finished()

    def _awaits_response(self) -> bool:
        return self._pending is not None and self._pending.request_completed_at is not None

    def _parse(self, at: float) -> Sequence[CapturedExchange | None]:
        while not self._closed:
            if self._pending is None or self._pending.request_completed_at is None:
                self._read_client(at)
            draft = self._pending
            if draft is None:
                break
            self._read_server(draft, at)
            if not (draft.response_complete and draft.request_completed_at is not None):
                break
            self._finish(draft, at, cut=False)
            self._start_next_cycle()
        return self._pop_finished()

    def _pop_finished(self) -> list[CapturedExchange | None]:
        found, self._finished = self._finished, []
        return found

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
        """An answer to this request: of its head, only method and upgrade count for that."""
        if event.method == b"CONNECT":
            raise UnobservableError("the connection was made a tunnel")
        headers = [("host", "-"), ("content-length", "0")]
        if any(name == b"upgrade" for name, _ in event.headers):
            headers += [("connection", "upgrade"), ("upgrade", "-")]
        self._server_parser.send(h11.Request(method=event.method, target="/", headers=headers))
        self._server_parser.send(h11.EndOfMessage())

    def _read_server(self, draft: _PendingExchange, at: float) -> None:
        while not draft.response_complete:
            event = self._server_parser.next_event()
            match event:
                case h11.InformationalResponse(status_code=101):
                    raise UnobservableError("the connection was upgraded to another protocol")
                case h11.InformationalResponse():
                    continue
                case h11.Response():
                    draft.response_head = event
                case h11.Data():
                    self._append_body(draft.response_body, bytes(event.data))
                    if draft.is_generation:
                        draft.marks.append((at - draft.began, draft.response_bytes))
                case h11.EndOfMessage():
                    draft.response_complete = True
                case _:
                    return

    def _append_body(self, parts: list[bytes], data: bytes) -> None:
        """A piece of a body. Of requests that no model answers nothing is kept."""
        draft = self._pending
        assert draft is not None
        if not draft.is_generation:
            return
        parts.append(data)
        draft.body_bytes += len(data)
        if parts is draft.response_body:
            draft.response_bytes += len(data)
        if draft.body_bytes > self._limits.body_bytes:
            raise UnobservableError("a body was too large")

    def _start_next_cycle(self) -> None:
        """On to the next request of the connection, if there may be one."""
        self._pending = None
        try:
            self._client_parser.send(
                h11.Response(status_code=200, headers=[("content-length", "0")])
            )
            self._client_parser.send(h11.EndOfMessage())
            self._client_parser.start_next_cycle()
            self._server_parser.start_next_cycle()
        except h11.LocalProtocolError:
            self._closed = True  # one side has said that it will close

    def _finish(self, draft: _PendingExchange, at: float, *, cut: bool) -> None:
        method = draft.request_head.method.decode("latin-1")
        if not draft.is_generation:
            self._finished.append(None)
            return
        asked = redact_headers(draft.request_head.headers)
        told = (
            redact_headers(draft.response_head.headers) if draft.response_head is not None else {}
        )
        answer = b"".join(draft.response_body)
        coding = told.pop("content-encoding", "")
        self._finished.append(
            CapturedExchange(
                number=self._next_number(),
                method=method,
                target=redact_target(draft.target),
                began=_EPOCH_OFFSET + draft.began,
                asked=(draft.request_completed_at or at) - draft.began,
                ended=at - draft.began,
                status=draft.response_head.status_code if draft.response_head is not None else 0,
                request_headers=asked,
                answer_headers=told,
                request=self._decode_content(
                    b"".join(draft.request_body), asked.pop("content-encoding", "")
                ),
                answer=answer if cut else self._decode_content(answer, coding),
                marks=() if coding else tuple(draft.marks),
                cut=cut,
            )
        )

    def _decode_content(self, body: bytes, coding: str) -> bytes:
        return decode_content(body, coding, self._limits.body_bytes) if coding else body
