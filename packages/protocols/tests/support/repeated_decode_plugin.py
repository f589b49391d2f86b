"""A pytest plugin that decodes each body again with a cache and compares the results.

One small cache serves all tests of the run, so that it is cold, warm and full in turn. Its
`body_prefixes` accept bodies of any size.
"""

from collections.abc import Callable

import pytest

from dovetail_model import DovetailError, Request
from dovetail_protocols import DecodeCache
from dovetail_protocols.chat import ChatCodec
from dovetail_protocols.codec import Headers
from dovetail_protocols.messages import MessagesCodec
from dovetail_protocols.responses import ResponsesCodec

Decode = Callable[[bytes, Headers, DecodeCache | None], Request]

CACHE = DecodeCache(500_000, min_body_bytes=0)
ROUNDS = 3  # cold, or as left by other tests; warm; warm again
decode_count = 0


def pytest_configure() -> None:
    plain = MessagesCodec.decode
    MessagesCodec.decode = staticmethod(checked_decode(plain))
    chat = ChatCodec.decode
    ChatCodec.decode = lambda self, body, headers, cache=None: checked_decode(  # type: ignore[method-assign]
        lambda *given: chat(self, *given)
    )(body, headers, cache)
    responses = ResponsesCodec.decode
    ResponsesCodec.decode = lambda self, body, headers, cache=None: checked_decode(  # type: ignore[method-assign]
        lambda *given: responses(self, *given)
    )(body, headers, cache)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"decoded again: {decode_count}")


def checked_decode(decode: Decode) -> Callable[..., Request]:
    def checked(body: bytes, headers: Headers, memory: DecodeCache | None = None) -> Request:
        global decode_count
        decode_count += 1
        expected = decode_result(decode, body, headers, memory)
        for _ in range(ROUNDS):
            assert decode_result(decode, body, headers, CACHE) == expected
        return decode(body, headers, memory)

    return checked


def decode_result(
    decode: Decode, body: bytes, headers: Headers, memory: DecodeCache | None
) -> object:
    """Return the request, or the error that the client gets."""
    try:
        return decode(body, headers, memory)
    except DovetailError as error:
        return type(error), error.message, error.param
