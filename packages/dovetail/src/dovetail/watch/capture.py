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
from dovetail.watch.exchange import Exchange, codec_of, plain_headers, plain_target
from dovetail.watch.relay import Direction

_EPOCH = time() - monotonic()


class Unobserved(Exception):
    """Why a connection is looked at no more."""


@dataclass(frozen=True)
class Limits:
    """Bytes: of a body, of what waits to be looked at, of a head."""

    body: int = 64 << 20
    queued: int = 256 << 20
    head: int = 256 << 10


class _Draft:
    """An exchange in the making."""

    __slots__ = (
        "answer",
        "answered",
        "asked",
        "began",
        "kept",
        "marks",
        "request",
        "seen",
        "size",
        "told",
        "wanted",
    )

    def __init__(self, asked: h11.Request, at: float) -> None:
        self.asked = asked
        self.began = at
        self.request: list[bytes] = []
        self.answer: list[bytes] = []
        self.wanted = codec_of(asked.method.decode("latin-1"), self.target) is not None
        self.kept = 0  # bytes of both bodies
        self.size = 0  # bytes of the answer
        self.told: h11.Response | None = None
        self.seen: float | None = None  # when the request was complete
        self.answered = False
        self.marks: list[tuple[float, int]] = []

    @property
    def target(self) -> str:
        return self.asked.target.decode("latin-1")


class Wiretap:
    """One connection."""

    def __init__(self, limits: Limits, number: Callable[[], int]) -> None:
        self._limits = limits
        self._number = number
        self._asks = h11.Connection(h11.SERVER, limits.head)
        self._tells = h11.Connection(h11.CLIENT, limits.head)
        self._ahead = 0  # bytes of requests that were sent ahead
        self._draft: _Draft | None = None
        self._found: list[Exchange | None] = []
        self._over = False

    def hear(self, direction: Direction, data: bytes, at: float) -> Sequence[Exchange | None]:
        """The exchanges that these bytes complete; None for one that no model answers.

        Raises where the bytes are not HTTP as we know it.
        """
        if self._over:
            return ()
        if direction == "asked":
            self._ahead = self._ahead + len(data) if self._is_answering() else 0
            if self._ahead > self._limits.body:
                raise Unobserved("requests were sent too far ahead")
            self._asks.receive_data(data)
        elif self._draft is None:
            raise Unobserved("the server spoke before it was asked")
        else:
            self._tells.receive_data(data)
        return self._pump(at)

    def close(self, at: float) -> Sequence[Exchange | None]:
        """The connection has ended: an answer without a length is complete, another one cut."""
        if self._over or self._draft is None:
            return ()
        draft = self._draft
        if draft.told is not None and not draft.answered:
            try:
                self._tells.receive_data(b"")
                self._hear_server(draft, at)
            except h11.RemoteProtocolError:
                pass
        self._over = True
        self._end(draft, at, cut=not draft.answered)
        return self._take()

    def _is_answering(self) -> bool:
        return self._draft is not None and self._draft.seen is not None

    def _pump(self, at: float) -> Sequence[Exchange | None]:
        while not self._over:
            if self._draft is None or self._draft.seen is None:
                self._hear_client(at)
            draft = self._draft
            if draft is None:
                break
            self._hear_server(draft, at)
            if not (draft.answered and draft.seen is not None):
                break
            self._end(draft, at, cut=False)
            self._next()
        return self._take()

    def _take(self) -> list[Exchange | None]:
        found, self._found = self._found, []
        return found

    def _hear_client(self, at: float) -> None:
        while True:
            event = self._asks.next_event()
            match event:
                case h11.Request():
                    self._draft = _Draft(event, at)
                    self._expect(event)
                case h11.Data() if self._draft is not None:
                    self._keep(self._draft.request, bytes(event.data))
                case h11.EndOfMessage() if self._draft is not None:
                    self._draft.seen = at
                    return
                case _:
                    return

    def _expect(self, event: h11.Request) -> None:
        """An answer to this request: of its head, only method and upgrade count for that."""
        if event.method == b"CONNECT":
            raise Unobserved("the connection was made a tunnel")
        headers = [("host", "-"), ("content-length", "0")]
        if any(name == b"upgrade" for name, _ in event.headers):
            headers += [("connection", "upgrade"), ("upgrade", "-")]
        self._tells.send(h11.Request(method=event.method, target="/", headers=headers))
        self._tells.send(h11.EndOfMessage())

    def _hear_server(self, draft: _Draft, at: float) -> None:
        while not draft.answered:
            event = self._tells.next_event()
            match event:
                case h11.InformationalResponse(status_code=101):
                    raise Unobserved("the connection was upgraded to another protocol")
                case h11.InformationalResponse():
                    continue
                case h11.Response():
                    draft.told = event
                case h11.Data():
                    self._keep(draft.answer, bytes(event.data))
                    if draft.wanted:
                        draft.marks.append((at - draft.began, draft.size))
                case h11.EndOfMessage():
                    draft.answered = True
                case _:
                    return

    def _keep(self, parts: list[bytes], data: bytes) -> None:
        """A piece of a body. Of requests that no model answers nothing is kept."""
        draft = self._draft
        assert draft is not None
        if not draft.wanted:
            return
        parts.append(data)
        draft.kept += len(data)
        if parts is draft.answer:
            draft.size += len(data)
        if draft.kept > self._limits.body:
            raise Unobserved("a body was too large")

    def _next(self) -> None:
        """On to the next request of the connection, if there may be one."""
        self._draft = None
        try:
            self._asks.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            self._asks.send(h11.EndOfMessage())
            self._asks.start_next_cycle()
            self._tells.start_next_cycle()
        except h11.LocalProtocolError:
            self._over = True  # one side has said that it will close

    def _end(self, draft: _Draft, at: float, *, cut: bool) -> None:
        method = draft.asked.method.decode("latin-1")
        if not draft.wanted:
            self._found.append(None)
            return
        asked = plain_headers(draft.asked.headers)
        told = plain_headers(draft.told.headers) if draft.told is not None else {}
        answer = b"".join(draft.answer)
        coding = told.pop("content-encoding", "")
        self._found.append(
            Exchange(
                number=self._number(),
                method=method,
                target=plain_target(draft.target),
                began=_EPOCH + draft.began,
                asked=(draft.seen or at) - draft.began,
                ended=at - draft.began,
                status=draft.told.status_code if draft.told is not None else 0,
                request_headers=asked,
                answer_headers=told,
                request=self._plain(b"".join(draft.request), asked.pop("content-encoding", "")),
                answer=answer if cut else self._plain(answer, coding),
                marks=() if coding else tuple(draft.marks),
                cut=cut,
            )
        )

    def _plain(self, body: bytes, coding: str) -> bytes:
        return decode_content(body, coding, self._limits.body) if coding else body
