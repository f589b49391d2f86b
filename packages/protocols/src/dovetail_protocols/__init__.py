"""Bytes to requests and events to bytes: one codec for each API, without IO."""

from dovetail_protocols.chat import CODEC as CHAT
from dovetail_protocols.chat import ChatCodec, ChatReader, chat_request
from dovetail_protocols.codec import Clock, Codec, ErrorAnswer, Ids, StreamEncoder
from dovetail_protocols.completions import CODEC as COMPLETIONS
from dovetail_protocols.completions import raw_prompt
from dovetail_protocols.memory import Memory
from dovetail_protocols.messages import CODEC as MESSAGES
from dovetail_protocols.messages import MessagesReader, decode_count, encode_count
from dovetail_protocols.responses import CODEC as RESPONSES
from dovetail_protocols.responses import ResponsesReader, overflow_stream, responses_request
from dovetail_protocols.sse import ServerEvent, SseReader
from dovetail_protocols.upstream import Asked, Dialect, ReasoningField, ToolNames

__all__ = [
    "CHAT",
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
    "ResponsesReader",
    "ServerEvent",
    "SseReader",
    "StreamEncoder",
    "ToolNames",
    "chat_request",
    "decode_count",
    "encode_count",
    "overflow_stream",
    "raw_prompt",
    "responses_request",
]
