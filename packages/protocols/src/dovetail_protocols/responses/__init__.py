"""OpenAI Responses."""

from collections.abc import Sequence

import msgspec

from dovetail_model import DovetailError, InvalidRequest, Message, Request
from dovetail_protocols.codec import Clock, Codec, ErrorResponse, Headers, IdFactory, StreamEncoder
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.openai_error import encode_error
from dovetail_protocols.responses import echo
from dovetail_protocols.responses.compaction import (
    CompactionEncoder,
    encode_compaction,
    to_compaction_response,
)
from dovetail_protocols.responses.decode import decode
from dovetail_protocols.responses.echo import ResponsesEcho
from dovetail_protocols.responses.encode import ResponsesEncoder, encode_message, overflow_stream
from dovetail_protocols.responses.item_list import (
    complete_item,
    encode_input_tokens,
    encode_items,
    item_id,
)
from dovetail_protocols.responses.raw_body import (
    compaction_body,
    input_items,
    item_references,
    items_by_id,
    join_response,
    minimal_body,
    prepend_history,
    previous_response_id,
    resolve_references,
    split_response,
    user_messages,
    with_default_model,
)
from dovetail_protocols.responses.reader import ResponsesReader
from dovetail_protocols.responses.upstream_request import build_responses_request

__all__ = [
    "CODEC",
    "COMPACT",
    "ResponsesCodec",
    "ResponsesEcho",
    "ResponsesEncoder",
    "ResponsesReader",
    "build_responses_request",
    "compaction_body",
    "complete_item",
    "encode_input_tokens",
    "encode_items",
    "input_items",
    "item_id",
    "item_references",
    "items_by_id",
    "join_response",
    "minimal_body",
    "overflow_stream",
    "prepend_history",
    "previous_response_id",
    "resolve_references",
    "split_response",
    "with_default_model",
]


class ResponsesCodec:
    """The API in both directions."""

    name = "responses"
    call_id_prefix = "call_"

    def decode(self, body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
        return decode(body, headers, cache)

    def stream(self, request: Request, ids: IdFactory, clock: Clock) -> StreamEncoder:
        kind = CompactionEncoder if echo.echo_of(request).compacts else ResponsesEncoder
        return kind(request, ids, clock)

    def encode_message(
        self, request: Request, messages: Sequence[Message], ids: IdFactory, clock: Clock
    ) -> bytes:
        whole = encode_compaction if echo.echo_of(request).compacts else encode_message
        return whole(request, messages, ids, clock)

    def encode_error(self, error: DovetailError) -> ErrorResponse:
        return encode_error(error)


class CompactCodec(ResponsesCodec):
    """The endpoint that compacts: user messages stay, a summary replaces the rest."""

    name = "responses_compact"

    def decode(self, body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
        items = input_items(body)
        if not items:
            raise InvalidRequest("input: There is nothing to compact", param="input")
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


CODEC: Codec = ResponsesCodec()
COMPACT: Codec = CompactCodec()
