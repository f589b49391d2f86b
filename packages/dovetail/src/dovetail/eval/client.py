"""One request, heard as an agent hears it: what came when, and when a tool could start."""

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
    """One API. `body` makes the fields of a request that asks for a stream."""

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
    """An answer as a chat message has it: one thought, one text, the calls."""
    thought = "".join(b.text for b in turn.blocks if isinstance(b, ReasoningBlock))
    text = "".join(b.text for b in turn.blocks if isinstance(b, TextBlock))
    said: list[Block] = [ReasoningBlock(thought)] if thought else []
    said += [TextBlock(text)] if text else []
    return Turn(turn.role, (*said, *(b for b in turn.blocks if isinstance(b, ToolCallBlock))))


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
    """Messages: what tools gave is a user's."""
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
            told = {"type": "tool_result", "tool_use_id": id, "content": content}
            return {**told, "is_error": True} if failed else told
        case _:
            raise ValueError(f"the tasks have no {block.type}")


def _parse_arguments(arguments: str) -> Json:
    """Arguments as an object. What is none was refused, and the model was told so."""
    try:
        found = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"input": arguments}


APIS: Mapping[str, ApiAdapter] = {
    api.name: api
    for api in (
        ApiAdapter("messages", "/v1/messages", _build_messages_body, MessagesReader),
        ApiAdapter("responses", "/v1/responses", _build_responses_body, ResponsesReader),
        ApiAdapter("chat", "/v1/chat/completions", _build_chat_body, ChatReader),
    )
}


TIMEOUTS = Timeouts(connect=10.0, read=600.0)
MAX_RESPONSE_BYTES = 16 << 20  # of one answer: far more than any limit of tokens lets come
MAX_TOOL_CALLS = 1000  # in one answer
_EPOCH_OFFSET = time() - monotonic()

ToolCallCallback = Callable[[ToolCallBlock], None]
"""What is done with a call as soon as it is complete."""


@dataclass(frozen=True)
class CallTiming:
    """Seconds since the request: when a call's last bytes came, and when it could be run."""

    received: float
    ready: float


@dataclass(frozen=True)
class TimedResponse:
    """An answer. `first` is when the first word came. `broke` says how the line failed, if so."""

    exchange: CapturedExchange
    message: Message
    first_token: float | None
    call_timings: tuple[CallTiming, ...]
    connection_error: str = ""


@dataclass(frozen=True)
class ApiClient:
    """Asks one server over one API. `extra` are fields for the body that this server knows."""

    endpoint: Endpoint
    api: ApiAdapter
    server: ResponderName = "upstream"
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_fields: Mapping[str, object] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=lambda: count(1), repr=False)

    async def send(self, request: Request, on_call: ToolCallCallback) -> TimedResponse:
        """The answer, and each call handed over the moment that its end is known."""
        body = msgspec.json.encode({**self.api.build_body(request), **self.extra_fields})
        session = request.identity.session or ""
        headers = {"x-session-id": session, **self.headers}
        hearing = _ResponseCollector(self.api, on_call)
        broke = ""
        try:
            call = ClientRequest("POST", self.api.path, body, headers, TIMEOUTS)
            async with send_request(self.endpoint, call) as reply:
                hearing.begin(reply.status, reply.headers)
                async for chunk in reply.iter_chunks():
                    hearing.feed(chunk)
        except DovetailError as fault:
            broke = fault.message
        hearing.finish()
        exchange = hearing.to_exchange(next(self._numbers), (self.api.path, headers, body))
        exchange = msgspec.structs.replace(exchange, cut=bool(broke), server=self.server)
        times = tuple(hearing.call_timings.values())
        return TimedResponse(exchange, hearing.fold.message(), hearing.first_token, times, broke)


class _ResponseCollector:
    """An answer on its way."""

    def __init__(self, api: ApiAdapter, on_call: ToolCallCallback) -> None:
        self.fold = Fold()
        self.first_token: float | None = None
        self.call_timings: dict[int, CallTiming] = {}
        self._reader = api.create_reader()
        self._on_call = on_call
        self._began = monotonic()
        self._last_received: dict[int, float] = {}  # when the last bytes of each call came
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
        if size + len(chunk) > MAX_RESPONSE_BYTES or len(self.call_timings) > MAX_TOOL_CALLS:
            raise EngineError("the answer has no end: it is not limited as it was asked to be")

    def finish(self) -> None:
        """The body is over. A server that does not stream has said everything at once."""
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
        """What went over the wire, for those who look at it later."""
        target, headers, body = request
        return CapturedExchange(
            number=number,
            method="POST",
            target=target,
            began=_EPOCH_OFFSET + self._began,
            asked=0.0,
            ended=self._now,
            status=self._status,
            request_headers=dict(headers),
            answer_headers=self._headers,
            request=body,
            answer=b"".join(self._parts),
            marks=tuple(self._marks),
        )
