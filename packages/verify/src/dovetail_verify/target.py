"""The server under test, as checks see it: ask it something, look at what came.

Independent of our codecs on purpose: bytes and plain JSON are read here, for they are judged.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from dovetail.engines.scripted.generation_log import RecordedGeneration
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, ClientResponse, send_request
from dovetail_protocols import SseReader
from dovetail_verify.check import NotApplicable
from dovetail_verify.exchange import Exchange, Frame, Sent

ANTHROPIC = {"anthropic-version": "2023-06-01"}
PATHS = {
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
}
T = TypeVar("T")
Json = dict[str, Any]


class Recording(Protocol):
    """What the engine behind the server was given: its prompts, in scripted mode."""

    async def heard(self, marker: str, least: int = 1) -> list[RecordedGeneration]:
        """The requests whose prompts contain a marker, oldest first, once there are enough."""
        ...


class Stage:
    """One server and one model on it. Remembers what was exchanged, as evidence.

    `facts` are what is known of the server: a check whose `needs` are not among them does not
    apply. `missing` are the APIs that the server does not serve, with what it said. `window` is the
    length of prompt and answer that it names.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        *,
        key: str | None = None,
        timeout: float = 60.0,
        recording: Recording | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.model = model
        self.key = key
        self.timeout = timeout
        self.recording = recording
        self.facts: set[str] = set() if recording is None else {"scripted"}
        self.missing: dict[str, str] = {}
        self.window: int | None = None
        self.exchanges: list[Exchange] = []
        self._kept: dict[str, tuple[Any, list[Exchange]]] = {}
        self._numbers = count(1)
        self._run = uuid4().hex[:8]

    def unique(self) -> str:
        """A word that no prompt had before, so that no cache knows what follows it."""
        return f"{self._run}-{next(self._numbers)}"

    def auth(self, path: str, *, signed: bool = True) -> dict[str, str]:
        """The headers that a client of this API sends by itself; with the key if it is signed."""
        anthropic = path.startswith("/v1/messages")
        headers = dict(ANTHROPIC) if anthropic else {}
        if self.key is not None and signed:
            named = (
                ("x-api-key", self.key) if anthropic else ("authorization", f"Bearer {self.key}")
            )
            headers[named[0]] = named[1]
        return headers

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        signed: bool = True,
    ) -> Exchange:
        """One exchange, read to its end. Unless it is `signed`, `headers` bring the key."""
        sent = Sent(method, path, body, headers or {}, signed)
        async with self.open(sent) as (reply, since):
            exchange = await _read(sent, reply, since)
        self.exchanges.append(exchange)
        return exchange

    async def post(
        self,
        path: str,
        body: Any,
        headers: Mapping[str, str] | None = None,
        *,
        signed: bool = True,
    ) -> Exchange:
        return await self.ask("POST", path, body, headers, signed=signed)

    @asynccontextmanager
    async def open(self, sent: Sent) -> AsyncIterator[tuple[ClientResponse, float]]:
        """An answer that the caller reads, and when it was asked for. Leaving hangs up."""
        headers = {**self.auth(sent.path, signed=sent.signed), **sent.headers}
        patience = Timeouts(10.0, self.timeout)
        since = asyncio.get_running_loop().time()
        call = ClientRequest(sent.method, sent.path, sent.payload, headers, patience)
        async with send_request(self.endpoint, call) as reply:
            yield reply, since

    async def once(self, name: str, make: Callable[["Stage"], Awaitable[T]]) -> T:
        """What several checks look at, made for the first of them. Its evidence is kept with it."""
        if name not in self._kept:
            mark = len(self.exchanges)
            value = await make(self)
            self._kept[name] = value, self.exchanges[mark:]
        else:
            self.exchanges.extend(self._kept[name][1])
        kept: T = self._kept[name][0]
        return kept

    def last(self) -> tuple[str, str]:
        """What was sent and came last."""
        if not self.exchanges:
            return "", ""
        exchange = self.exchanges[-1]
        return str(exchange.sent), exchange.came

    def needs_served(self, api: str) -> None:
        """The check does not apply where the server lacks the API."""
        if api in self.missing:
            raise NotApplicable(f"API not served: {self.missing[api]}")


async def _read(sent: Sent, reply: ClientResponse, since: float) -> Exchange:
    loop = asyncio.get_running_loop()
    reader, frames, chunks = SseReader(), list[Frame](), list[bytes]()
    streamed = "event-stream" in reply.headers.get("content-type", "")
    async for chunk in reply.iter_chunks():
        chunks.append(chunk)
        if streamed:
            at = loop.time() - since
            frames += [Frame(event.event, event.data, at) for event in reader.feed(chunk)]
    ended = loop.time() - since
    return Exchange(sent, reply.status, reply.headers, b"".join(chunks), frames, ended)
