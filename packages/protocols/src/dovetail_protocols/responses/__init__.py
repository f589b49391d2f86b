"""OpenAI Responses."""

from collections.abc import Sequence

import msgspec

from dovetail_model import (
    DovetailError,
    EngineUnavailable,
    InvalidRequest,
    Message,
    RateLimited,
    Request,
)
from dovetail_protocols.codec import (
    Clock,
    ErrorResponse,
    Headers,
    IdFactory,
    OnEnd,
    StreamErrors,
)
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.field_names import rename_field
from dovetail_protocols.openai_error import encode_error
from dovetail_protocols.rate_limits import openai_headers
from dovetail_protocols.responses import echo
from dovetail_protocols.responses.compaction import (
    CompactionEncoder,
    encode_compaction,
    to_compaction_response,
)
from dovetail_protocols.responses.conversations import (
    ConversationBody,
    decode_conversation,
    encode_conversation,
    encode_deleted_conversation,
)
from dovetail_protocols.responses.decode import decode
from dovetail_protocols.responses.echo import ResponsesEcho, with_effective_sampling
from dovetail_protocols.responses.encode import ResponsesEncoder, encode_message
from dovetail_protocols.responses.item_list import (
    complete_item,
    encode_input_tokens,
    encode_items,
    item_id,
)
from dovetail_protocols.responses.raw_body import (
    compaction_body,
    conversation_id,
    input_items,
    item_references,
    items_by_id,
    join_response,
    prepend_history,
    previous_response_id,
    resolve_references,
    split_response,
    unmatched_result_ids,
    user_messages,
    with_default_model,
)
from dovetail_protocols.responses.reader import ResponsesReader
from dovetail_protocols.responses.stream_errors import ResponsesStreamErrors

__all__ = [
    "CODEC",
    "COMPACT",
    "MODELS_ETAG_HEADER",
    "ConversationBody",
    "ResponsesCodec",
    "ResponsesEcho",
    "ResponsesEncoder",
    "ResponsesReader",
    "compaction_body",
    "complete_item",
    "conversation_id",
    "decode_conversation",
    "encode_conversation",
    "encode_deleted_conversation",
    "encode_input_tokens",
    "encode_items",
    "input_items",
    "item_id",
    "item_references",
    "items_by_id",
    "join_response",
    "prepend_history",
    "previous_response_id",
    "resolve_references",
    "split_response",
    "unmatched_result_ids",
    "with_default_model",
    "with_effective_sampling",
]


MODELS_ETAG_HEADER = "x-models-etag"
"""Codex compares it with the tag of its model list, and fetches the list again if they differ."""


_FIELD_NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
}


class ResponsesCodec:
    """The Responses API in both directions."""

    name = "responses"
    call_id_prefix = "call_"
    history_field = "input"
    path_prefix = "/v1/responses"
    client_header: str | None = None
    overload_error: type[DovetailError] = RateLimited
    # Codex retries this error, whereas it ends its session on an overload error.
    draining_error: type[DovetailError] = EngineUnavailable
    unknown_route_error: type[DovetailError] = InvalidRequest
    raw_prompts = False
    models_etag_header: str | None = MODELS_ETAG_HEADER
    stream_errors: StreamErrors | None = ResponsesStreamErrors()
    rate_limit_headers = staticmethod(openai_headers)

    @property
    def stateful(self) -> "ResponsesCodec":
        return self

    def decode(self, body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
        return decode(body, headers, cache)

    def stream(
        self, request: Request, ids: IdFactory, clock: Clock, on_end: OnEnd | None = None
    ) -> ResponsesEncoder:
        kind = CompactionEncoder if echo.echo_of(request).compacts else ResponsesEncoder
        encoder = kind(request, ids, clock)
        encoder.on_end = on_end
        return encoder

    def encode_message(
        self, request: Request, messages: Sequence[Message], ids: IdFactory, clock: Clock
    ) -> bytes:
        whole = encode_compaction if echo.echo_of(request).compacts else encode_message
        return whole(request, messages, ids, clock)

    def encode_error(self, error: DovetailError) -> ErrorResponse:
        return encode_error(rename_field(error, _FIELD_NAMES))


class CompactCodec(ResponsesCodec):
    """The codec of the compaction endpoint: user messages stay, a summary replaces the rest.

    The endpoint does not stream, so its errors are never inside a stream.
    """

    name = "responses_compact"
    models_etag_header: str | None = None
    stream_errors: StreamErrors | None = None

    def decode(self, body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
        items = input_items(body)
        if not items:
            raise InvalidRequest("input: must not be empty for a compaction", param="input")
        request = decode(compaction_body(body), headers, cache)
        compaction_echo = msgspec.structs.replace(
            echo.echo_of(request), user_messages=user_messages(items)
        )
        return msgspec.structs.replace(request, echo=compaction_echo)

    def encode_message(
        self, request: Request, messages: Sequence[Message], ids: IdFactory, clock: Clock
    ) -> bytes:
        whole = encode_compaction(request, messages, ids, clock)
        return to_compaction_response(whole, echo.echo_of(request).user_messages, ids)


CODEC = ResponsesCodec()
COMPACT = CompactCodec()
