"""Bytes to requests and events to bytes: one codec for each API, without IO."""

from dovetail_protocols.codec import Clock, Codec, ErrorAnswer, Ids, StreamEncoder
from dovetail_protocols.sse import ServerEvent, SseReader

__all__ = ["Clock", "Codec", "ErrorAnswer", "Ids", "ServerEvent", "SseReader", "StreamEncoder"]
