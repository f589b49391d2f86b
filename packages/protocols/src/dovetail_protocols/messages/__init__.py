"""Anthropic Messages, as Claude Code and the official SDKs use it."""

from dovetail_protocols.codec import Codec
from dovetail_protocols.messages.decode import decode, decode_count
from dovetail_protocols.messages.encode import CALL_PREFIX, MessagesStream, stream
from dovetail_protocols.messages.error import encode_error
from dovetail_protocols.messages.message import encode_count, encode_message
from dovetail_protocols.messages.reader import MessagesReader

__all__ = [
    "CODEC",
    "MessagesCodec",
    "MessagesReader",
    "MessagesStream",
    "decode_count",
    "encode_count",
]


class MessagesCodec:
    """The Messages API, in both directions."""

    name = "messages"
    call_id_prefix = CALL_PREFIX
    decode = staticmethod(decode)
    decode_count = staticmethod(decode_count)
    stream = staticmethod(stream)
    encode_message = staticmethod(encode_message)
    encode_count = staticmethod(encode_count)
    encode_error = staticmethod(encode_error)


CODEC: Codec = MessagesCodec()
