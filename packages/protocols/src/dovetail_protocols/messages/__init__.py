"""Anthropic Messages, as used by Claude Code and the official SDKs."""

from dovetail_model import DovetailError, NotFound, Overloaded
from dovetail_protocols.codec import Codec
from dovetail_protocols.messages.decode import decode, decode_count
from dovetail_protocols.messages.encode import CALL_PREFIX, MessagesStream, stream
from dovetail_protocols.messages.error import encode_error
from dovetail_protocols.messages.message import encode_count, encode_message
from dovetail_protocols.messages.reader import MessagesReader
from dovetail_protocols.rate_limits import anthropic_headers

__all__ = [
    "CODEC",
    "MessagesCodec",
    "MessagesReader",
    "MessagesStream",
    "decode_count",
    "encode_count",
]


class MessagesCodec:
    """The Messages API in both directions.

    Its clients retry overload errors: 529 from a server without capacity, and 503 with the same
    type from a draining server.
    """

    name = "messages"
    call_id_prefix = CALL_PREFIX
    history_field = "messages"
    path_prefix = "/v1/messages"
    client_header: str | None = "anthropic-version"
    overload_error: type[DovetailError] = Overloaded
    draining_error: type[DovetailError] = Overloaded
    unknown_route_error: type[DovetailError] = NotFound
    raw_prompts = False
    models_etag_header: str | None = None
    stream_errors = None
    stateful = None
    decode = staticmethod(decode)
    decode_count = staticmethod(decode_count)
    stream = staticmethod(stream)
    encode_message = staticmethod(encode_message)
    encode_count = staticmethod(encode_count)
    encode_error = staticmethod(encode_error)
    rate_limit_headers = staticmethod(anthropic_headers)


CODEC: Codec = MessagesCodec()
