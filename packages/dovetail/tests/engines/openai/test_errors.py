"""Error responses of many servers, and the errors they map to."""

import msgspec
import pytest

from dovetail.engines.openai.errors import (
    error_from_rejection,
    error_from_stream_failure,
    parse_rejection,
)
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Failure,
    InvalidRequest,
    Overloaded,
)


def openai(message: str, code: object = None, type: str = "invalid_request_error") -> bytes:
    error = {"message": message, "type": type, "param": None, "code": code}
    return msgspec.json.encode({"error": error})


OPENAI_LONG = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 "
    "tokens. Please reduce the length of the messages."
)
VLLM_LONG = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains 5000 input "
    "tokens, which exceeds this limit even without any output tokens."
)
LLAMA_LONG = "request (2031 tokens) exceeds the available context size (1024 tokens), try"
LMSTUDIO_LONG = (
    "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded "
    "with context length of only 4096 tokens, which is not enough."
)

CASES: list[tuple[int, bytes, type[DovetailError], str]] = [
    (400, openai(OPENAI_LONG, "context_length_exceeded"), ContextOverflow, "9001 tokens > 8192"),
    (400, openai(VLLM_LONG, 400, "BadRequestError"), ContextOverflow, "5000 tokens > 4096"),
    (
        400,
        openai(LLAMA_LONG, 400, "exceed_context_size_error"),
        ContextOverflow,
        "prompt is too long: 2031 tokens > 1024 maximum",
    ),
    (400, openai(LMSTUDIO_LONG), ContextOverflow, "prompt is too long: Trying"),
    (400, openai("prompt is too long: 10 tokens > 5 maximum"), ContextOverflow, "10 tokens > 5"),
    (500, openai(LLAMA_LONG), ContextOverflow, "2031 tokens > 1024"),
    (
        401,
        openai("Bad key.", "invalid_api_key"),
        EngineError,
        "rejected the configured API key (401)",
    ),
    (403, b"Forbidden", EngineError, "rejected the configured API key (403)"),
    (404, openai("The model `m` does not exist", "model_not_found"), EngineError, "the model 'm'"),
    (404, b'{"detail": "Not Found"}', EngineError, "Not Found"),
    (408, b"", EngineTimeout, "no reason given"),
    (504, b"<html>Gateway", EngineTimeout, "Gateway"),
    (429, openai("Slow down."), Overloaded, "is overloaded"),
    (529, b"{}", Overloaded, "is overloaded"),
    (503, openai("Loading model", 503, "unavailable_error"), EngineUnavailable, "Loading model"),
    (502, b"Bad Gateway", EngineUnavailable, "Bad Gateway"),
    (500, b'{"error": "it broke"}', EngineError, "it broke"),
    (400, b'{"message": "no such field"}', InvalidRequest, "no such field"),
    (422, b'{"detail": [{"loc": ["body", "n"], "msg": "bad"}]}', InvalidRequest, '"msg":"bad"'),
]


@pytest.mark.parametrize(("status", "content", "kind", "words"), CASES)
def test_error_for_status(status: int, content: bytes, kind: type[Exception], words: str) -> None:
    error = error_from_rejection("the upstream", "m", parse_rejection(status, content))
    assert type(error) is kind
    assert words in error.message


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("Wed, 21 Oct", None), (None, None)])
def test_retry_after(header: str | None, seconds: float | None) -> None:
    headers = {} if header is None else {"retry-after": header}
    for status in (429, 503):
        assert (
            error_from_rejection("it", "m", parse_rejection(status, b"", headers)).retry_after
            == seconds
        )


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure("engine", LLAMA_LONG), ContextOverflow),
        (Failure("context_overflow", "Too long."), ContextOverflow),
        (Failure("rate_limited", "Slow down."), Overloaded),
        (Failure("unauthenticated", "Who?"), EngineError),
        (Failure("engine_unavailable", "Gone."), EngineUnavailable),
        (Failure("invalid_request", "Bad."), InvalidRequest),
    ],
)
def test_error_for_stream_failure(failure: Failure, kind: type[Exception]) -> None:
    assert type(error_from_stream_failure("the upstream", failure)) is kind
