"""The official SDK reads Dovetail's bytes; the stream adds up to the complete response."""

from typing import Any

import httpx2
import msgspec
import openai
import pytest
from generated_events import request_body, scripts
from golden_transcripts import CountingIds, Transcript, clock, transcripts
from hypothesis import given
from openai import OpenAI

from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineUnavailable,
    Event,
    Forbidden,
    InvalidRequest,
    NotFound,
    RateLimited,
    Unauthenticated,
    fold,
)
from dovetail_protocols.chat import CODEC

CHAT = [transcript for transcript in transcripts() if transcript.api == "chat"]
WELL = [transcript for transcript in CHAT if transcript.failure() is None]
EACH = pytest.mark.parametrize("transcript", WELL, ids=lambda t: t.folder.name)
# Fields that only the helper adds to its copy of the response.
ADDED = ("parsed", "parsed_arguments", "annotations", "audio", "function_call", "moderation")


def client(content: bytes, kind: str, status: int = 200, **headers: str) -> OpenAI:
    """Return a client whose server always returns this response."""

    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers={"content-type": kind, **headers}, content=content)

    http = httpx2.Client(transport=httpx2.MockTransport(respond))
    return OpenAI(api_key="x", base_url="http://test/v1", max_retries=0, http_client=http)


def accumulated(stream: bytes, body: bytes) -> Any:
    """Return the result of the SDK's own helper for a stream."""
    fields = msgspec.json.decode(body)
    fields.pop("stream", None)
    with client(stream, "text/event-stream").chat.completions.stream(
        model=fields.pop("model"),
        messages=fields.pop("messages"),
        extra_body=fields,
    ) as helper:
        for _ in helper:
            pass
        return tidy(helper.current_completion_snapshot.to_dict())


def whole(content: bytes) -> Any:
    response = client(content, "application/json").chat.completions.create(model="m", messages=[])
    return tidy(response.to_dict())


def tidy(value: Any) -> Any:
    """Remove empty values, so that the two copies can be compared."""
    if isinstance(value, list):
        return [tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    remaining = {key: tidy(item) for key, item in value.items() if key not in ADDED}
    if "tool_calls" in remaining:
        for call in remaining["tool_calls"] or ():
            call.pop("index", None)  # the helper does not remove it
    return {key: item for key, item in remaining.items() if item not in (None, "")}


def without(completion: Any, *, usage: bool) -> Any:
    """Remove what the helper lacks: later extra fields of a choice, and usage that was not sent."""
    for choice in completion["choices"]:
        choice.pop("stop_reason", None)
    if not usage:
        completion.pop("usage", None)
    return completion


@EACH
def test_golden_stream_adds_up_to_the_complete_response(transcript: Transcript) -> None:
    usage = "stream_options" in msgspec.json.decode(transcript.body)
    found = accumulated(transcript.stream(), transcript.body)
    assert without(found, usage=usage) == without(whole(transcript.whole()), usage=usage)


@EACH
def test_plain_stream_is_read_chunk_by_chunk(transcript: Transcript) -> None:
    stream = client(transcript.stream(), "text/event-stream").chat.completions.create(
        model="m", messages=[], stream=True
    )
    chunks = [chunk for chunk in stream if chunk.object == "chat.completion.chunk"]
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    reasons = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
    expected = whole(transcript.whole())["choices"][0]
    assert text == expected["message"].get("content", "")
    assert reasons == [expected["finish_reason"]]


@given(scripts())
def test_any_stream_adds_up_to_the_complete_response(events: list[Event]) -> None:
    body = request_body(
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=2,
        nvext={"extra_fields": ["reasoning_segments"]},
    )
    request = CODEC.decode(body, {})
    stream = CODEC.stream(request, CountingIds(), clock).encode(events)
    response = CODEC.encode_message(request, [fold(events)], CountingIds(), clock)
    assert without(accumulated(stream, body), usage=True) == without(whole(response), usage=True)


@given(scripts(), scripts())
def test_two_choices_add_up(first: list[Event], second: list[Event]) -> None:
    body = request_body(stream_options={"include_usage": True}, n=2)
    request = CODEC.decode(body, {})
    encoder = CODEC.stream(request, CountingIds(), clock)
    stream = encoder.encode(second, 1) + encoder.encode(first, 0)
    response = CODEC.encode_message(request, [fold(first), fold(second)], CountingIds(), clock)
    assert without(accumulated(stream, body), usage=True) == without(whole(response), usage=True)


def test_failure_within_a_stream_is_raised() -> None:
    broken = next(transcript for transcript in CHAT if transcript.failure() is not None)
    with pytest.raises(openai.APIError, match="The engine stopped answering") as caught:
        accumulated(broken.stream(), broken.body)
    assert caught.value.code == "service_unavailable"
    assert caught.value.type == "server_error"


ERRORS: list[tuple[DovetailError, type[openai.APIStatusError], str | None]] = [
    (InvalidRequest("x", param="messages[0]"), openai.BadRequestError, None),
    (ContextOverflow("x"), openai.BadRequestError, "context_length_exceeded"),
    (Unauthenticated("x"), openai.AuthenticationError, "invalid_api_key"),
    (Forbidden("x"), openai.PermissionDeniedError, "permission_denied"),
    (NotFound("x"), openai.NotFoundError, "model_not_found"),
    (RateLimited("x", retry_after=1.5), openai.RateLimitError, "rate_limit_exceeded"),
    (EngineUnavailable("x"), openai.InternalServerError, "service_unavailable"),
]


@pytest.mark.parametrize(("error", "kind", "code"), ERRORS, ids=lambda value: str(value))
def test_errors_are_raised_with_their_sdk_type(
    error: DovetailError, kind: type[openai.APIStatusError], code: str | None
) -> None:
    response = CODEC.encode_error(error)
    failing = client(response.body, "application/json", response.status, **dict(response.headers))
    with pytest.raises(kind) as caught:
        failing.chat.completions.create(model="m", messages=[])
    assert caught.value.code == code
    assert caught.value.param == error.param
    if error.retry_after is not None:
        assert caught.value.response.headers["retry-after"] == "2"
