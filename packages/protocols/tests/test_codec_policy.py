"""Policy of the codecs: errors, rate-limit headers, keep-alives and capabilities of each API."""

from datetime import UTC, datetime

import msgspec
import pytest
from golden_transcripts import CountingIds, clock

from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineUnavailable,
    InvalidRequest,
    NotFound,
    Overloaded,
    RateLimited,
    Usage,
)
from dovetail_protocols import (
    CHAT,
    COMPACT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    ChatCodec,
    Codec,
    LimitStatus,
    SseReader,
)

CODECS: list[Codec] = [MESSAGES, RESPONSES, COMPACT, CHAT, COMPLETIONS]
OPENAI = CODECS[1:]
IDS = [codec.name for codec in CODECS]
OPENAI_IDS = IDS[1:]
LIMITS = [LimitStatus("requests", 60, 59, 1.0), LimitStatus("tokens", 100, 0, 90.5)]
NOON = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC).timestamp()
BODY = b'{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}'


def error_of(codec: Codec, kind: type[DovetailError]) -> tuple[int, str]:
    """Return status and type of an error of this kind."""
    response = codec.encode_error(kind("No."))
    return response.status, msgspec.json.decode(response.body)["error"]["type"]


def test_messages_errors_of_a_busy_or_draining_server() -> None:
    assert MESSAGES.overload_error is Overloaded
    assert error_of(MESSAGES, MESSAGES.overload_error) == (529, "overloaded_error")
    assert error_of(MESSAGES, MESSAGES.draining_error)[1] == "overloaded_error"


@pytest.mark.parametrize("codec", OPENAI, ids=OPENAI_IDS)
def test_openai_errors_of_a_busy_or_draining_server(codec: Codec) -> None:
    assert codec.overload_error is RateLimited
    assert codec.draining_error is EngineUnavailable
    assert error_of(codec, codec.overload_error) == (429, "rate_limit_error")


def test_unknown_route_is_not_found_only_in_messages() -> None:
    assert error_of(MESSAGES, MESSAGES.unknown_route_error) == (404, "not_found_error")
    assert MESSAGES.unknown_route_error is NotFound
    assert {codec.unknown_route_error for codec in OPENAI} == {InvalidRequest}


def test_path_prefixes_and_client_headers() -> None:
    prefixes = {codec.name: codec.path_prefix for codec in CODECS}
    assert prefixes == {
        "messages": "/v1/messages",
        "responses": "/v1/responses",
        "responses_compact": "/v1/responses",
        "chat": "/v1/chat",
        "completions": "/v1/completions",
    }
    assert MESSAGES.client_header == "anthropic-version"
    assert {codec.client_header for codec in OPENAI} == {None}


def test_only_completions_have_raw_prompts() -> None:
    assert [codec for codec in CODECS if codec.raw_prompts] == [COMPLETIONS]


def test_only_responses_are_stateful() -> None:
    stateful = [codec.stateful for codec in CODECS]
    assert stateful == [None, RESPONSES, COMPACT, None, None]


def test_only_responses_have_a_models_etag_header() -> None:
    tags = [codec.models_etag_header for codec in CODECS]
    assert tags == [None, "x-models-etag", None, None, None]


def test_policy_is_the_same_for_every_chat_codec() -> None:
    names = ("overload_error", "draining_error", "unknown_route_error", "path_prefix")
    other = ChatCodec("reasoning")
    assert [getattr(other, name) for name in names] == [getattr(CHAT, name) for name in names]


def test_rate_limit_headers_of_anthropic() -> None:
    assert MESSAGES.rate_limit_headers(LIMITS, NOON) == [
        ("anthropic-ratelimit-requests-limit", "60"),
        ("anthropic-ratelimit-requests-remaining", "59"),
        ("anthropic-ratelimit-requests-reset", "2026-11-15T12:00:01Z"),
        ("anthropic-ratelimit-tokens-limit", "100"),
        ("anthropic-ratelimit-tokens-remaining", "0"),
        ("anthropic-ratelimit-tokens-reset", "2026-11-15T12:01:30Z"),
    ]


@pytest.mark.parametrize("codec", OPENAI, ids=OPENAI_IDS)
def test_rate_limit_headers_of_openai(codec: Codec) -> None:
    assert codec.rate_limit_headers(LIMITS, NOON) == [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-limit-tokens", "100"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "1m30.5s"),
    ]


def test_reset_below_a_second_is_in_milliseconds() -> None:
    [*_, (_, reset)] = CHAT.rate_limit_headers([LimitStatus("requests", 1, 1, 0.0123)], NOON)
    assert reset == "12ms"


@pytest.mark.parametrize("codec", CODECS, ids=IDS)
def test_no_rate_limit_headers_without_limits(codec: Codec) -> None:
    assert codec.rate_limit_headers([], NOON) == []


def test_responses_send_overflow_and_rate_limits_inside_a_stream() -> None:
    errors = RESPONSES.stream_errors
    assert errors is not None
    covered = [ContextOverflow("x"), RateLimited("x")]
    assert all(errors.covers(error) for error in covered)
    assert not any(errors.covers(error) for error in (Overloaded("x"), InvalidRequest("x")))
    body = b'{"model": "m", "stream": true, "input": [17], "tools": "broken", "instructions": 5}'
    request = errors.decode(body, {})
    assert (request.model, request.stream) == ("m", True)
    frames = errors.encode(
        request, RateLimited("Too many.", retry_after=1.23), CountingIds(), clock
    )
    [*_, last] = SseReader().feed(frames)
    assert last.event == "response.failed"
    error = msgspec.json.decode(last.data)["response"]["error"]
    assert error == {
        "code": "rate_limit_exceeded",
        "message": "Too many. Please try again in 1.3s.",
    }


def test_other_apis_have_no_stream_errors() -> None:
    assert [codec.stream_errors for codec in CODECS if codec is not RESPONSES] == [None] * 4


def test_messages_keep_alive_in_reasoning_is_an_empty_delta() -> None:
    encoder = MESSAGES.stream(MESSAGES.decode(BODY, {}), CountingIds(), clock)
    encoder.encode([Usage(3)])
    names = [frame.event for frame in SseReader().feed(encoder.keep_alive(in_reasoning=True))]
    assert names == ["content_block_start", "content_block_delta"]
    again = SseReader().feed(encoder.keep_alive(in_reasoning=True))
    assert [frame.event for frame in again] == ["content_block_delta"]
    assert b"ping" in encoder.keep_alive()


def test_chat_keep_alive_is_the_same_in_reasoning() -> None:
    request = CHAT.decode(BODY, {})
    encoder = CHAT.stream(request, CountingIds(), clock)
    assert encoder.keep_alive(in_reasoning=True) == encoder.keep_alive() != b""
