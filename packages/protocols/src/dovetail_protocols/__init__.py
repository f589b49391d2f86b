"""Bytes to requests and events to bytes: one codec for each API, without IO."""

from dovetail_protocols.chat import CODEC as CHAT
from dovetail_protocols.chat import ChatCodec, ChatReader, build_chat_request
from dovetail_protocols.codec import Clock, Codec, ErrorResponse, IdFactory, StreamEncoder
from dovetail_protocols.completions import CODEC as COMPLETIONS
from dovetail_protocols.completions import raw_prompt
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.messages import CODEC as MESSAGES
from dovetail_protocols.messages import MessagesReader, decode_count, encode_count
from dovetail_protocols.responses import CODEC as RESPONSES
from dovetail_protocols.responses import (
    COMPACT,
    ResponsesCodec,
    ResponsesReader,
    build_responses_request,
    encode_input_tokens,
    items_by_id,
    join_response,
    overflow_stream,
    split_response,
    with_default_model,
)
from dovetail_protocols.responses import ResponsesEcho as ResponsesEcho
from dovetail_protocols.responses import ResponsesEncoder as ResponsesEncoder
from dovetail_protocols.responses import complete_item as listed_item
from dovetail_protocols.responses import encode_items as encode_items
from dovetail_protocols.responses import input_items as input_items
from dovetail_protocols.responses import item_id as item_id
from dovetail_protocols.responses import item_references as item_references
from dovetail_protocols.responses import minimal_body as shortened_body
from dovetail_protocols.responses import prepend_history as joined_body
from dovetail_protocols.responses import previous_response_id as previous_response
from dovetail_protocols.responses import resolve_references as resolved_body
from dovetail_protocols.sse import ServerEvent, SseReader
from dovetail_protocols.upstream import ReasoningField, ToolNames, UpstreamDialect, UpstreamRequest

__all__ = [
    "CHAT",
    "COMPACT",
    "COMPLETIONS",
    "MESSAGES",
    "RESPONSES",
    "ChatCodec",
    "ChatReader",
    "Clock",
    "Codec",
    "DecodeCache",
    "ErrorResponse",
    "IdFactory",
    "MessagesReader",
    "ReasoningField",
    "ResponsesCodec",
    "ResponsesEcho",
    "ResponsesEncoder",
    "ResponsesReader",
    "ServerEvent",
    "SseReader",
    "StreamEncoder",
    "ToolNames",
    "UpstreamDialect",
    "UpstreamRequest",
    "build_chat_request",
    "build_responses_request",
    "decode_count",
    "encode_count",
    "encode_input_tokens",
    "encode_items",
    "input_items",
    "item_id",
    "item_references",
    "items_by_id",
    "join_response",
    "joined_body",
    "listed_item",
    "overflow_stream",
    "previous_response",
    "raw_prompt",
    "resolved_body",
    "shortened_body",
    "split_response",
    "with_default_model",
]
