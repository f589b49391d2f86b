"""OpenAI text completions: continue a raw prompt."""

from collections.abc import Sequence

from dovetail_model import (
    DovetailError,
    EngineUnavailable,
    InvalidRequest,
    Message,
    RateLimited,
    Request,
)
from dovetail_protocols import openai_error as _error
from dovetail_protocols.codec import Clock, Codec, ErrorResponse, Headers, IdFactory
from dovetail_protocols.completions import decode as _decode
from dovetail_protocols.completions import encode as _encode
from dovetail_protocols.completions.decode import raw_prompt
from dovetail_protocols.completions.encode import CompletionStream
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.field_names import rename_field
from dovetail_protocols.rate_limits import openai_headers

__all__ = ["CODEC", "CompletionStream", "CompletionsCodec", "raw_prompt"]


class CompletionsCodec:
    """The text completions API. It has no tool calls; the id prefix is that of chat."""

    name = "completions"
    call_id_prefix = "call_"
    history_field = "prompt"
    path_prefix = "/v1/completions"
    client_header: str | None = None
    overload_error: type[DovetailError] = RateLimited
    draining_error: type[DovetailError] = EngineUnavailable
    unknown_route_error: type[DovetailError] = InvalidRequest
    raw_prompts = True
    models_etag_header: str | None = None
    stream_errors = None
    stateful = None
    rate_limit_headers = staticmethod(openai_headers)

    def decode(self, body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
        """Decode a request. There is no history to cache."""
        return _decode.decode(body, headers)

    def stream(self, request: Request, ids: IdFactory, clock: Clock) -> CompletionStream:
        return CompletionStream(request, ids, clock)

    def encode_message(
        self, request: Request, messages: Sequence[Message], ids: IdFactory, clock: Clock
    ) -> bytes:
        return _encode.encode_message(request, messages, ids, clock)

    def encode_error(self, error: DovetailError) -> ErrorResponse:
        return _error.encode_error(rename_field(error, {"messages": "prompt"}))


CODEC: Codec = CompletionsCodec()
