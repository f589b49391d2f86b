"""Bytes to requests and events to bytes: one codec for each API, without IO."""

from dovetail_protocols.chat import CODEC as CHAT
from dovetail_protocols.chat import ChatCodec, ChatReader, chat_request
from dovetail_protocols.codec import Clock, Codec, ErrorAnswer, Ids, StreamEncoder
from dovetail_protocols.completions import CODEC as COMPLETIONS
from dovetail_protocols.completions import raw_prompt
from dovetail_protocols.decode_cache import Memory
from dovetail_protocols.messages import CODEC as MESSAGES
from dovetail_protocols.messages import MessagesReader, decode_count, encode_count
from dovetail_protocols.responses import CODEC as RESPONSES
from dovetail_protocols.responses import (
    COMPACT,
    ResponsesCodec,
    ResponsesReader,
    encode_input_tokens,
    items_by_id,
    overflow_stream,
    responses_request,
    split_response,
    whole_response,
    with_model,
)
from dovetail_protocols.responses import Echo as ResponsesEcho
from dovetail_protocols.responses import Encoder as ResponsesEncoder
from dovetail_protocols.responses import encode_list as encode_items
from dovetail_protocols.responses import id_of as item_id
from dovetail_protocols.responses import joined as joined_body
from dovetail_protocols.responses import listed as listed_item
from dovetail_protocols.responses import own_items as input_items
from dovetail_protocols.responses import previous_of as previous_response
from dovetail_protocols.responses import references as item_references
from dovetail_protocols.responses import resolved as resolved_body
from dovetail_protocols.responses import shortened as shortened_body
from dovetail_protocols.sse import ServerEvent, SseReader
from dovetail_protocols.upstream import Asked, Dialect, ReasoningField, ToolNames

__all__ = [
    "CHAT",
    "COMPACT",
    "COMPLETIONS",
    "MESSAGES",
    "RESPONSES",
    "Asked",
    "ChatCodec",
    "ChatReader",
    "Clock",
    "Codec",
    "Dialect",
    "ErrorAnswer",
    "Ids",
    "Memory",
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
    "chat_request",
    "decode_count",
    "encode_count",
    "encode_input_tokens",
    "encode_items",
    "input_items",
    "item_id",
    "item_references",
    "items_by_id",
    "joined_body",
    "listed_item",
    "overflow_stream",
    "previous_response",
    "raw_prompt",
    "resolved_body",
    "responses_request",
    "shortened_body",
    "split_response",
    "whole_response",
    "with_model",
]
