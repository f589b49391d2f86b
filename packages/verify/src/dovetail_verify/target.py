"""The server under test: checks send requests to it and inspect the responses.

This module reads bytes and plain JSON instead of using Dovetail's codecs, which are under test too.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import msgspec

from dovetail_verify.check import CheckFailed, NotApplicable
from dovetail_verify.exchange import HttpExchange, SentRequest, SseFrame
from dovetail_verify.http_client import Endpoint, SseParser, StreamedResponse, open_connection

ANTHROPIC_HEADERS = {"anthropic-version": "2023-06-01"}
API_PATHS = {
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
}
T = TypeVar("T")
Json = dict[str, Any]


class RecordedRequest(
    msgspec.Struct,
    frozen=True,
    rename={
        "started_at": "began",
        "prompt_tokens": "prompt",
        "prompt_text": "text",
        "cached_count": "cached",
        "output_tokens": "output",
        "output_text": "said",
    },
):
    """A request as the scripted engine recorded it: the prompt and the generated output.

    The names in the file differ because its format is older than the field names.
    """

    started_at: float
    prompt_tokens: tuple[int, ...]
    cached_count: int
    output_tokens: tuple[int, ...]
    prompt_text: str = ""
    output_text: str = ""


class EngineRecording(Protocol):
    """The requests that the engine behind the server received, in scripted mode."""

    async def find_requests(self, marker: str, min_count: int = 1) -> list[RecordedRequest]:
        """Wait for `min_count` requests with the marker in the prompt; return them oldest first."""
        ...


class TargetServer:
    """A server and one of its models. Records all exchanges as evidence.

    `features` lists the features of the server: a check does not apply if one of its `requires` is
    missing. `missing_apis` maps the APIs that the server lacks to its response. `context_length` is
    the number of tokens that the server states for prompt and output together.
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
        self.features: set[str] = set() if recording is None else {"scripted mode"}
        self.missing_apis: dict[str, str] = {}
        self.context_length: int | None = None
        self.exchanges: list[HttpExchange] = []
        self._memo: dict[str, tuple[Any, list[HttpExchange]]] = {}
        self._counter = count(1)
        self._run_id = uuid4().hex[:8]

    def new_nonce(self) -> str:
        """Return a unique word. Text after it in a prompt cannot be a prefix cache hit."""
        return f"{self._run_id}-{next(self._counter)}"

    def auth_headers(self, path: str, *, authenticated: bool = True) -> dict[str, str]:
        """Return the headers that every client of this API sends."""
        anthropic = path.startswith("/v1/messages")
        headers = dict(ANTHROPIC_HEADERS) if anthropic else {}
        if self.api_key is not None and authenticated:
            if anthropic:
                headers["x-api-key"] = self.api_key
            else:
                headers["authorization"] = f"Bearer {self.api_key}"
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
        """Send a request and read its response. The API key is sent only if `authenticated`."""
        sent = SentRequest(method, path, body, headers or {}, authenticated)
        async with self.open_stream(sent) as (response, started_at):
            exchange = await _read_exchange(sent, response, started_at)
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
    ) -> AsyncIterator[tuple[StreamedResponse, float]]:
        """Send a request; yield the response and the start time. Leaving the block disconnects."""
        headers = {
            "connection": "close",
            **self.auth_headers(request.path, authenticated=request.authenticated),
            **request.headers,
        }
        started_at = asyncio.get_running_loop().time()
        async with open_connection(self.endpoint, self.timeout) as connection:
            yield (
                await connection.stream(request.method, request.path, headers, request.payload),
                started_at,
            )

    async def memoize(self, name: str, make: Callable[["TargetServer"], Awaitable[T]]) -> T:
        """Compute a value once for all checks that use it, and replay its exchanges as evidence."""
        if name not in self._memo:
            mark = len(self.exchanges)
            made = await make(self)
            self._memo[name] = made, self.exchanges[mark:]
        else:
            self.exchanges.extend(self._memo[name][1])
        value: T = self._memo[name][0]
        return value

    def last_evidence(self) -> tuple[str, str]:
        """Return the last request and its response."""
        if not self.exchanges:
            return "", ""
        exchange = self.exchanges[-1]
        return str(exchange.request), exchange.summary

    def require_api(self, api: str) -> None:
        """Raise `NotApplicable` if the server lacks the API."""
        if api in self.missing_apis:
            raise NotApplicable(f"API not served: {self.missing_apis[api]}")


async def _read_exchange(
    sent: SentRequest, response: StreamedResponse, started_at: float
) -> HttpExchange:
    loop = asyncio.get_running_loop()
    parser, frames, chunks = SseParser(), list[SseFrame](), list[bytes]()
    streamed = "event-stream" in response.headers.get("content-type", "")
    async for chunk in response.iter_chunks():
        chunks.append(chunk)
        if streamed:
            elapsed = loop.time() - started_at
            frames += [SseFrame(event, data, elapsed) for event, data in parser.feed(chunk)]
    total = loop.time() - started_at
    return HttpExchange(sent, response.status, response.headers, b"".join(chunks), frames, total)


RECORD_TIMEOUT_SECONDS = 10.0  # the engine writes the line after the last token
POLL_SECONDS = 0.02


class FileRecording:
    """The file that the scripted engine writes with `--record`. Each line is read once."""

    __slots__ = ("_offset", "_path", "_requests", "_timeout")

    def __init__(self, path: Path, timeout_seconds: float = RECORD_TIMEOUT_SECONDS) -> None:
        self._path = path
        self._timeout = timeout_seconds
        self._offset = 0
        self._requests: list[RecordedRequest] = []

    async def find_requests(self, marker: str, min_count: int = 1) -> list[RecordedRequest]:
        """Wait for `min_count` requests with the marker in the prompt; return them oldest first."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        while True:
            self._read_new_lines()
            found = [request for request in self._requests if marker in request.prompt_text]
            if len(found) >= min_count:
                return sorted(found, key=lambda request: request.started_at)
            if asyncio.get_running_loop().time() > deadline:
                raise CheckFailed(
                    f"the engine received {len(found)} prompts with the text of the user, "
                    f"expected {min_count}"
                )
            await asyncio.sleep(POLL_SECONDS)

    def _read_new_lines(self) -> None:
        """Read the complete lines that were written since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, end, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(end)
        self._requests += [
            msgspec.json.decode(line, type=RecordedRequest) for line in whole.splitlines()
        ]
