"""OpenAI Responses."""

from collections.abc import Sequence

from dovetail_model import DovetailError, Message, Request
from dovetail_protocols.codec import Clock, Codec, ErrorAnswer, Headers, Ids, StreamEncoder
from dovetail_protocols.memory import Memory
from dovetail_protocols.openai_error import encode_error
from dovetail_protocols.responses import echo
from dovetail_protocols.responses.asking import responses_request
from dovetail_protocols.responses.compaction import CompactionEncoder, encode_compaction
from dovetail_protocols.responses.decode import decode
from dovetail_protocols.responses.echo import Echo
from dovetail_protocols.responses.encode import Encoder, encode_message, overflow_stream
from dovetail_protocols.responses.read import ResponsesReader

__all__ = [
    "CODEC",
    "Echo",
    "ResponsesCodec",
    "ResponsesReader",
    "overflow_stream",
    "responses_request",
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


CODEC: Codec = ResponsesCodec()
