"""OpenAI Responses."""

from collections.abc import Sequence

import msgspec

from dovetail_model import DovetailError, InvalidRequest, Message, Request
from dovetail_protocols.codec import Clock, Codec, ErrorAnswer, Headers, Ids, StreamEncoder
from dovetail_protocols.decode_cache import Memory
from dovetail_protocols.openai_error import encode_error
from dovetail_protocols.responses import echo
from dovetail_protocols.responses.compaction import (
    CompactionEncoder,
    compacted,
    encode_compaction,
)
from dovetail_protocols.responses.decode import decode
from dovetail_protocols.responses.echo import Echo
from dovetail_protocols.responses.encode import Encoder, encode_message, overflow_stream
from dovetail_protocols.responses.item_list import encode_input_tokens, encode_list, id_of, listed
from dovetail_protocols.responses.raw_body import (
    items_by_id,
    joined,
    own_items,
    previous_of,
    references,
    resolved,
    shortened,
    split_response,
    triggered,
    user_items,
    whole_response,
    with_model,
)
from dovetail_protocols.responses.reader import ResponsesReader
from dovetail_protocols.responses.upstream_request import responses_request

__all__ = [
    "CODEC",
    "COMPACT",
    "Echo",
    "Encoder",
    "ResponsesCodec",
    "ResponsesReader",
    "encode_input_tokens",
    "encode_list",
    "id_of",
    "items_by_id",
    "joined",
    "listed",
    "overflow_stream",
    "own_items",
    "previous_of",
    "references",
    "resolved",
    "responses_request",
    "shortened",
    "split_response",
    "triggered",
    "whole_response",
    "with_model",
]


class ResponsesCodec:
    """The API in both directions."""

    name = "responses"
    call_id_prefix = "call_"

    def decode(self, body: bytes, headers: Headers, memory: Memory | None = None) -> Request:
        return decode(body, headers, memory)

    def stream(self, request: Request, ids: Ids, clock: Clock) -> StreamEncoder:
        kind = CompactionEncoder if echo.of(request).compacts else Encoder
        return kind(request, ids, clock)

    def encode_message(
        self, request: Request, messages: Sequence[Message], ids: Ids, clock: Clock
    ) -> bytes:
        whole = encode_compaction if echo.of(request).compacts else encode_message
        return whole(request, messages, ids, clock)

    def encode_error(self, error: DovetailError) -> ErrorAnswer:
        return encode_error(error)


class CompactCodec(ResponsesCodec):
    """The endpoint that compacts: what the user said stays, a summary stands for the rest."""

    name = "responses_compact"

    def decode(self, body: bytes, headers: Headers, memory: Memory | None = None) -> Request:
        items = own_items(body)
        if not items:
            raise InvalidRequest("input: There is nothing to compact", param="input")
        request = decode(triggered(body), headers, memory)
        said = msgspec.structs.replace(echo.of(request), said=user_items(items))
        return msgspec.structs.replace(request, echo=said)

    def encode_message(
        self, request: Request, messages: Sequence[Message], ids: Ids, clock: Clock
    ) -> bytes:
        whole = encode_compaction(request, messages, ids, clock)
        return compacted(whole, echo.of(request).said, ids)


CODEC: Codec = ResponsesCodec()
COMPACT: Codec = CompactCodec()
