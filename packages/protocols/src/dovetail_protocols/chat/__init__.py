"""OpenAI Chat Completions."""

from collections.abc import Sequence
from typing import Literal

from dovetail_model import (
    DovetailError,
    EngineUnavailable,
    InvalidRequest,
    Message,
    RateLimited,
    Request,
)
from dovetail_protocols import openai_error as _error
from dovetail_protocols.chat import decode as _decode
from dovetail_protocols.chat import message as _message
from dovetail_protocols.chat.encode import ChatStream
from dovetail_protocols.chat.reader import ChatReader
from dovetail_protocols.codec import Clock, Codec, ErrorResponse, Headers, IdFactory
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.rate_limits import openai_headers

__all__ = ["CODEC", "ChatCodec", "ChatReader", "ChatStream"]

ReasoningField = Literal["reasoning_content", "reasoning"]


class ChatCodec:
    """The Chat Completions API. `reasoning_field` is the field in which clients get reasoning."""

    name = "chat"
    call_id_prefix = "call_"
    history_field = "messages"
    path_prefix = "/v1/chat"
    client_header: str | None = None
    overload_error: type[DovetailError] = RateLimited
    draining_error: type[DovetailError] = EngineUnavailable
    unknown_route_error: type[DovetailError] = InvalidRequest
    raw_prompts = False
    models_etag_header: str | None = None
    stream_errors = None
    stateful = None
    rate_limit_headers = staticmethod(openai_headers)

    def __init__(self, reasoning_field: ReasoningField = "reasoning_content") -> None:
        self._reasoning_field = reasoning_field

    def decode(self, body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
        return _decode.decode(body, headers, cache)

    def stream(self, request: Request, ids: IdFactory, clock: Clock) -> ChatStream:
        return ChatStream(request, ids, clock, self._reasoning_field)

    def encode_message(
        self, request: Request, messages: Sequence[Message], ids: IdFactory, clock: Clock
    ) -> bytes:
        return _message.encode_message(request, messages, ids, clock, self._reasoning_field)

    def encode_error(self, error: DovetailError) -> ErrorResponse:
        return _error.encode_error(error)


CODEC: Codec = ChatCodec()
