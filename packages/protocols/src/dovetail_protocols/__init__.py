"""Bytes to requests and events to bytes: one codec for each API, without IO."""

from dovetail_protocols.chat import CODEC as CHAT
from dovetail_protocols.chat import ChatCodec, ChatReader
from dovetail_protocols.codec import Clock, Codec, ErrorAnswer, Ids, StreamEncoder
from dovetail_protocols.completions import CODEC as COMPLETIONS
from dovetail_protocols.completions import raw_prompt
from dovetail_protocols.memory import Memory
from dovetail_protocols.messages import CODEC as MESSAGES
from dovetail_protocols.messages import decode_count, encode_count
from dovetail_protocols.responses import CODEC as RESPONSES
from dovetail_protocols.responses import overflow_stream
from dovetail_protocols.sse import ServerEvent, SseReader

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "MESSAGES",
    "RESPONSES",
    "ChatCodec",
    "ChatReader",
    "Clock",
    "Codec",
    "ErrorAnswer",
    "Ids",
    "Memory",
    "ServerEvent",
    "SseReader",
    "StreamEncoder",
    "decode_count",
    "encode_count",
    "overflow_stream",
    "raw_prompt",
]
