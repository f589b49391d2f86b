"""The server under test, as checks see it: ask it something, look at what came.

Independent of our codecs on purpose: bytes and plain JSON are read here, for they are judged.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import msgspec

from dovetail.engines.scripted.generation_log import RecordedGeneration
from dovetail.net.http_client import ClientRequest, ClientResponse, Endpoint, Timeouts, send_request
from dovetail_protocols import SseReader
from dovetail_verify.check import CheckFailed, NotApplicable
from dovetail_verify.exchange import HttpExchange, SentRequest, SseFrame

ANTHROPIC_HEADERS = {"anthropic-version": "2023-06-01"}
API_PATHS = {
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
}
T = TypeVar("T")
Json = dict[str, Any]


class EngineRecording(Protocol):
    """What the engine behind the server was given: its prompts, in scripted mode."""

    async def find_requests(self, marker: str, min_count: int = 1) -> list[RecordedGeneration]:
        """The requests whose prompts contain a marker, oldest first, once there are enough."""
        ...


class TargetServer:
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
        api_key: str | None = None,
        timeout: float = 60.0,
        recording: EngineRecording | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.model = model
        self.api_key = api_key
        self.timeout = timeout
        self.recording = recording
        self.features: set[str] = set() if recording is None else {"scripted"}
        self.missing_apis: dict[str, str] = {}
        self.context_length: int | None = None
        self.exchanges: list[HttpExchange] = []
        self._memo: dict[str, tuple[Any, list[HttpExchange]]] = {}
        self._counter = count(1)
        self._run_id = uuid4().hex[:8]

    def new_nonce(self) -> str:
        """A word that no prompt had before, so that no cache knows what follows it."""
        return f"{self._run_id}-{next(self._counter)}"

    def auth_headers(self, path: str, *, authenticated: bool = True) -> dict[str, str]:
        """The headers that a client of this API sends by itself; with the key if it is signed."""
        anthropic = path.startswith("/v1/messages")
        headers = dict(ANTHROPIC_HEADERS) if anthropic else {}
        if self.api_key is not None and authenticated:
            named = (
                ("x-api-key", self.api_key)
                if anthropic
                else ("authorization", f"Bearer {self.api_key}")
            )
            headers[named[0]] = named[1]
        return headers

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        authenticated: bool = True,
    ) -> HttpExchange:
        """One exchange, read to its end. Unless it is `signed`, `headers` bring the key."""
        sent = SentRequest(method, path, body, headers or {}, authenticated)
        async with self.open_stream(sent) as (reply, since):
            exchange = await _read_exchange(sent, reply, since)
        self.exchanges.append(exchange)
        return exchange

    async def post(
        self,
        path: str,
        body: Any,
        headers: Mapping[str, str] | None = None,
        *,
        authenticated: bool = True,
    ) -> HttpExchange:
        return await self.request("POST", path, body, headers, authenticated=authenticated)

    @asynccontextmanager
    async def open_stream(
        self, request: SentRequest
    ) -> AsyncIterator[tuple[ClientResponse, float]]:
        """An answer that the caller reads, and when it was asked for. Leaving hangs up."""
        headers = {
            **self.auth_headers(request.path, authenticated=request.authenticated),
            **request.headers,
        }
        patience = Timeouts(10.0, self.timeout)
        since = asyncio.get_running_loop().time()
        call = ClientRequest(request.method, request.path, request.payload, headers, patience)
        async with send_request(self.endpoint, call) as reply:
            yield reply, since

    async def memoize(self, name: str, make: Callable[["TargetServer"], Awaitable[T]]) -> T:
        """What several checks look at, made for the first of them. Its evidence is kept with it."""
        if name not in self._memo:
            mark = len(self.exchanges)
            value = await make(self)
            self._memo[name] = value, self.exchanges[mark:]
        else:
            self.exchanges.extend(self._memo[name][1])
        kept: T = self._memo[name][0]
        return kept

    def last_evidence(self) -> tuple[str, str]:
        """What was sent and came last."""
        if not self.exchanges:
            return "", ""
        exchange = self.exchanges[-1]
        return str(exchange.request), exchange.summary

    def require_api(self, api: str) -> None:
        """The check does not apply where the server lacks the API."""
        if api in self.missing_apis:
            raise NotApplicable(f"API not served: {self.missing_apis[api]}")


async def _read_exchange(sent: SentRequest, reply: ClientResponse, since: float) -> HttpExchange:
    loop = asyncio.get_running_loop()
    reader, frames, chunks = SseReader(), list[SseFrame](), list[bytes]()
    streamed = "event-stream" in reply.headers.get("content-type", "")
    async for chunk in reply.iter_chunks():
        chunks.append(chunk)
        if streamed:
            at = loop.time() - since
            frames += [SseFrame(event.event, event.data, at) for event in reader.feed(chunk)]
    ended = loop.time() - since
    return HttpExchange(sent, reply.status, reply.headers, b"".join(chunks), frames, ended)


RECORD_TIMEOUT_SECONDS = 10.0  # seconds: an engine writes its line when the last token has left
POLL_SECONDS = 0.02


class FileRecording:
    """The file that `--record` of the scripted engine names. Each line is read once."""

    __slots__ = ("_offset", "_path", "_requests")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._requests: list[RecordedGeneration] = []

    async def find_requests(self, marker: str, min_count: int = 1) -> list[RecordedGeneration]:
        """The requests whose prompts contain a marker, oldest first, once there are enough."""
        until = asyncio.get_running_loop().time() + RECORD_TIMEOUT_SECONDS
        while True:
            self._read_new_lines()
            found = [heard for heard in self._requests if marker in heard.text]
            if len(found) >= min_count:
                return sorted(found, key=lambda heard: heard.began)
            if asyncio.get_running_loop().time() > until:
                raise CheckFailed(
                    f"the engine was given {len(found)} prompts with the user's words, "
                    f"{min_count} were sent"
                )
            await asyncio.sleep(POLL_SECONDS)

    def _read_new_lines(self) -> None:
        """What has been written since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, end, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(end)
        self._requests += [
            msgspec.json.decode(line, type=RecordedGeneration) for line in whole.splitlines()
        ]
