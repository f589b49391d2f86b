"""An API client that measures responses as an agent sees them, with the times of tool calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import monotonic, time
from typing import Any, Literal

import msgspec

from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, send_request
from dovetail.watch.decoder import ResponseReader
from dovetail.watch.exchange import CapturedExchange, ResponderName
from dovetail_model import (
    Block,
    CallArgs,
    CallClose,
    CallOpen,
    DovetailError,
    EngineError,
    Event,
    Fold,
    Message,
    ReasoningBlock,
    ReasoningDelta,
    Request,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)
from dovetail_protocols import (
    ChatReader,
    MessagesReader,
    ResponsesReader,
    UpstreamDialect,
    build_chat_request,
    build_responses_request,
)

ApiName = Literal["chat", "messages", "responses"]
Json = dict[str, Any]


@dataclass(frozen=True)
class ApiAdapter:
    """One API. `build_body` builds the fields of a streaming request."""

    name: ApiName
    path: str
    build_body: Callable[[Request], Json]
    create_reader: Callable[[], ResponseReader]


def _build_chat_body(request: Request) -> Json:
    turns = tuple(
        _group_blocks(turn) if turn.role == "assistant" else turn for turn in request.turns
    )
    return build_chat_request(msgspec.structs.replace(request, turns=turns), request.model).fields


def _group_blocks(turn: Turn) -> Turn:
    """Group a response like a chat message: one reasoning block, one text block, the calls."""
    reasoning = "".join(b.text for b in turn.blocks if isinstance(b, ReasoningBlock))
    text = "".join(b.text for b in turn.blocks if isinstance(b, TextBlock))
    blocks: list[Block] = [ReasoningBlock(reasoning)] if reasoning else []
    blocks += [TextBlock(text)] if text else []
    return Turn(turn.role, (*blocks, *(b for b in turn.blocks if isinstance(b, ToolCallBlock))))


def _build_responses_body(request: Request) -> Json:
    return build_responses_request(request, request.model, UpstreamDialect(seals=True)).fields


def _build_messages_body(request: Request) -> Json:
    sampling = request.sampling
    fields: Json = {
        "model": request.model,
        "system": [_encode_block(block) for block in request.system],
        "messages": _encode_turns(request.turns),
        "tools": [
            {"name": t.name, "description": t.description, "input_schema": t.parameters}
            for t in request.tools
        ],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "stream": True,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _encode_turns(turns: Sequence[Turn]) -> list[Json]:
    """Encode messages. Tool results are sent in user turns."""
    return [
        {
            "role": "assistant" if turn.role == "assistant" else "user",
            "content": [_encode_block(block) for block in turn.blocks],
        }
        for turn in turns
    ]


def _encode_block(block: Block) -> Json:
    match block:
        case TextBlock(text=text):
            return {"type": "text", "text": text}
        case ReasoningBlock(text="", seal=str(seal)):
            return {"type": "redacted_thinking", "data": seal}
        case ReasoningBlock(text=text, seal=seal):
            return {"type": "thinking", "thinking": text, "signature": seal or ""}
        case ToolCallBlock(id=id, name=name, arguments=arguments):
            return {
                "type": "tool_use",
                "id": id,
                "name": name,
                "input": _parse_arguments(arguments),
            }
        case ToolResultBlock(call_id=id, blocks=blocks, is_error=failed):
            content = [_encode_block(inner) for inner in blocks]
            result = {"type": "tool_result", "tool_use_id": id, "content": content}
            return {**result, "is_error": True} if failed else result
        case _:
            raise ValueError(f"blocks of type {block.type} are not supported in tasks")


def _parse_arguments(arguments: str) -> Json:
    """Parse arguments as an object. The agent has already rejected invalid ones."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"input": arguments}


APIS: Mapping[str, ApiAdapter] = {
    api.name: api
    for api in (
        ApiAdapter("messages", "/v1/messages", _build_messages_body, MessagesReader),
        ApiAdapter("responses", "/v1/responses", _build_responses_body, ResponsesReader),
        ApiAdapter("chat", "/v1/chat/completions", _build_chat_body, ChatReader),
    )
}


TIMEOUTS = Timeouts(connect=10.0, read=600.0)
MAX_RESPONSE_BYTES = 16 << 20  # far more than any token limit allows
MAX_TOOL_CALLS = 1000  # of one response
_EPOCH_OFFSET = time() - monotonic()

ToolCallCallback = Callable[[ToolCallBlock], None]
"""Called with each tool call as soon as it is complete."""


@dataclass(frozen=True)
class CallTiming:
    """Seconds from the request to a call's last byte, and to the moment when it could be run."""

    received: float
    ready: float


@dataclass(frozen=True)
class TimedResponse:
    """A response with its times. `connection_error` is why the connection failed, if it did."""

    exchange: CapturedExchange
    message: Message
    first_token: float | None
    call_timings: tuple[CallTiming, ...]
    connection_error: str = ""


@dataclass(frozen=True)
class ApiClient:
    """Sends requests to one server over one API. `extra_fields` are added to the body."""

    endpoint: Endpoint
    api: ApiAdapter
    server: ResponderName = "upstream"
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_fields: Mapping[str, object] = field(default_factory=dict)
    max_response_bytes: int = MAX_RESPONSE_BYTES
    max_tool_calls: int = MAX_TOOL_CALLS
    _numbers: "count[int]" = field(default_factory=lambda: count(1), repr=False)

    async def send(self, request: Request, on_call: ToolCallCallback) -> TimedResponse:
        """Send a request. `on_call` is called with each tool call as soon as it is complete."""
        body = msgspec.json.encode({**self.api.build_body(request), **self.extra_fields})
        session = request.identity.session or ""
        headers = {"x-session-id": session, **self.headers}
        collector = _ResponseCollector(self, on_call)
        connection_error = ""
        try:
            http_request = ClientRequest("POST", self.api.path, body, headers, TIMEOUTS)
            async with send_request(self.endpoint, http_request) as reply:
                collector.begin(reply.status, reply.headers)
                async for chunk in reply.iter_chunks():
                    collector.feed(chunk)
        except DovetailError as error:
            connection_error = error.message
        collector.finish()
        exchange = collector.to_exchange(next(self._numbers), (self.api.path, headers, body))
        exchange = msgspec.structs.replace(
            exchange, truncated=bool(connection_error), server=self.server
        )
        times = tuple(collector.call_timings.values())
        return TimedResponse(
            exchange, collector.fold.message(), collector.first_token, times, connection_error
        )


class _ResponseCollector:
    """Collects a response while it is received."""

    def __init__(self, client: ApiClient, on_call: ToolCallCallback) -> None:
        self.fold = Fold()
        self.first_token: float | None = None
        self.call_timings: dict[int, CallTiming] = {}
        self._reader = client.api.create_reader()
        self._max_bytes = client.max_response_bytes
        self._max_calls = client.max_tool_calls
        self._on_call = on_call
        self._began = monotonic()
        self._last_received: dict[int, float] = {}  # of each call
        self._opened: list[int] = []
        self._status = 0
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._marks: list[tuple[float, int]] = []

    @property
    def _now(self) -> float:
        return monotonic() - self._began

    @property
    def _streamed(self) -> bool:
        return self._headers.get("content-type", "").startswith("text/event-stream")

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, dict(headers)

    def feed(self, chunk: bytes) -> None:
        self._parts.append(chunk)
        size = self._marks[-1][1] if self._marks else 0
        self._marks.append((self._now, size + len(chunk)))
        if self._status == 200 and self._streamed:
            self._process(self._reader.feed(chunk))
        if size + len(chunk) > self._max_bytes or len(self.call_timings) > self._max_calls:
            raise EngineError("the response exceeds every limit: the server ignores max_tokens")

    def finish(self) -> None:
        """Process the end of the body. A non-streaming response is parsed here."""
        if self._status != 200:
            return
        if self._streamed:
            self._process(self._reader.finish())
        else:
            self._process(self._reader.whole(b"".join(self._parts)))

    def _process(self, events: list[Event]) -> None:
        now = self._now
        for event in events:
            self.fold.add(event)
            match event:
                case CallOpen(index=index):
                    self._opened.append(index)
                    self._last_received[index] = now
                case CallArgs(index=index):
                    self._last_received[index] = now
                case CallClose(index=index) if index not in self.call_timings:
                    self.call_timings[index] = CallTiming(self._last_received.get(index, now), now)
                    self._on_call(self._find_call(index))
            if self.first_token is None and isinstance(
                event, TextDelta | ReasoningDelta | CallOpen
            ):
                self.first_token = now

    def _find_call(self, index: int) -> ToolCallBlock:
        blocks = self.fold.message().blocks
        calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
        return calls[self._opened.index(index)]

    def to_exchange(
        self, number: int, request: tuple[str, Mapping[str, str], bytes]
    ) -> CapturedExchange:
        """Return the exchange as captured on the wire, for the analysis."""
        target, headers, body = request
        return CapturedExchange(
            number=number,
            method="POST",
            target=target,
            began=_EPOCH_OFFSET + self._began,
            request_received=0.0,
            ended=self._now,
            status=self._status,
            request_headers=dict(headers),
            response_headers=self._headers,
            request=body,
            response=b"".join(self._parts),
            marks=tuple(self._marks),
        )
