"""The official Anthropic SDK reads Dovetail's bytes, over HTTP in memory."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import msgspec
import pytest
from anthropic.types import Message, MessageTokensCount
from golden_transcripts import CODECS, CountingIds, Transcript, clock, transcripts
from hypothesis import given, settings
from messages_streams import message_events, without_surrogates

from dovetail_model import (
    CallArgs,
    CallOpen,
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Event,
    Finish,
    Forbidden,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    RateLimited,
    Request,
    RequestTooLarge,
    TextDelta,
    Unauthenticated,
    Unsupported,
    Usage,
    fold,
)
from dovetail_protocols.messages import decode_count, encode_count

CODEC = CODECS["messages"]
ALL = [transcript for transcript in transcripts() if transcript.api == "messages"]
WHOLE = [transcript for transcript in ALL if transcript.failure() is None]
BROKEN = [transcript for transcript in ALL if transcript.failure() is not None]


class Server:
    """Responds like Dovetail: with a stream if requested, else with the complete message."""

    def __init__(self, events: list[Event], error: DovetailError | None = None) -> None:
        self.events = events
        self.error = error
        self.client = anthropic.Anthropic(
            api_key="local",
            timeout=60,  # without a timeout the SDK insists on streaming long responses
            base_url="http://dovetail",
            max_retries=0,
            http_client=httpx2.Client(transport=httpx2.MockTransport(self._respond)),
        )

    def _respond(self, sent: httpx2.Request) -> httpx2.Response:
        if self.error is not None:
            error = CODEC.encode_error(self.error)
            return httpx2.Response(error.status, content=error.body, headers=list(error.headers))
        if sent.url.path == "/v1/messages/count_tokens":
            decode_count(sent.content, {})
            return _json(encode_count(216))
        request = CODEC.decode(sent.content, dict(sent.headers))
        if not request.stream:
            return _json(CODEC.encode_message(request, [fold(self.events)], CountingIds(), clock))
        return httpx2.Response(
            200,
            headers={"content-type": "text/event-stream"},
            content=self._frames(request),
        )

    def _frames(self, request: Request) -> Iterator[bytes]:
        encoder = CODEC.stream(request, CountingIds(), clock)
        for event in self.events:
            yield encoder.encode([event]) + encoder.keep_alive()

    def streamed(self, arguments: dict[str, Any]) -> Message:
        with self.client as client, client.messages.stream(**arguments) as stream:
            return stream.get_final_message()

    def created(self, arguments: dict[str, Any]) -> Message:
        with self.client as client:
            message: Message = client.messages.create(**arguments)
            return message


def _json(content: bytes) -> httpx2.Response:
    return httpx2.Response(200, content=content, headers={"content-type": "application/json"})


def sdk_arguments(transcript: Transcript) -> dict[str, Any]:
    """Return the golden request as SDK arguments; fields that vary by version as extra body."""
    body = msgspec.json.decode(transcript.body)
    named = {name: body.pop(name) for name in ("model", "messages", "max_tokens")}
    del body["stream"]
    return {**named, "extra_body": body}


def plain(message: Message) -> dict[str, Any]:
    """Return a message without the fields that only the SDK's stream adds."""
    data: dict[str, Any] = message.to_dict(mode="json", exclude_none=True)
    for block in data["content"]:
        block.pop("parsed_output", None)
    return data


@pytest.mark.parametrize("transcript", WHOLE, ids=lambda t: t.id)
def test_golden_stream_adds_up_to_the_complete_message(transcript: Transcript) -> None:
    request = sdk_arguments(transcript)
    streamed = Server(transcript.events()).streamed(request)
    created = Server(transcript.events()).created(request)
    assert plain(streamed) == plain(created)
    assert streamed.model == request["model"]


@pytest.mark.parametrize("transcript", WHOLE, ids=lambda t: t.id)
def test_sdk_knows_every_field(transcript: Transcript) -> None:
    created = Server(transcript.events()).created(sdk_arguments(transcript))
    Message.model_validate(plain(created), strict=True)
    for part in (created, created.usage, *created.content):
        assert not part.model_extra


@pytest.mark.parametrize("transcript", BROKEN, ids=lambda t: t.id)
def test_broken_stream_raises(transcript: Transcript) -> None:
    with pytest.raises(anthropic.APIStatusError, match="stopped answering") as caught:
        Server(transcript.events()).streamed(sdk_arguments(transcript))
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "The engine stopped answering."},
    }


@pytest.mark.parametrize("transcript", BROKEN, ids=lambda t: t.id)
def test_broken_message_is_an_error(transcript: Transcript) -> None:
    with pytest.raises(EngineError, match="stopped answering"):
        transcript.whole()


MINIMAL: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hi"}],
}


@settings(max_examples=100, deadline=None)
@given(events=message_events().filter(without_surrogates))
def test_any_stream_adds_up_to_the_complete_message(events: list[Event]) -> None:
    streamed = Server(events).streamed(MINIMAL)
    assert plain(streamed) == plain(Server(events).created(MINIMAL))


TRUNCATED = [
    "", " ", "{", '{"a', '{"a"', '{"a":', '{"a": 12', '{"a": 12,', '{"a": -', '{"a": 1.',
    '{"a": 1e', '{"a": tr', '{"a": true', '{"a": "x', '{"a": "x"', '{"a": "x\\',
    '{"a": {"b": 1, "c": "', '{"a": [1, 2', '{"a": [1, 2,', '{"a": ["}", "y',
    '{"a": 1, "b": {"c": [', '{"a": 1, "b',
]  # fmt: skip


@pytest.mark.parametrize("arguments", TRUNCATED)
def test_truncated_call_has_its_complete_members(arguments: str) -> None:
    events: list[Event] = [CallOpen(0, "f", id="toolu_1"), CallArgs(0, arguments), Finish("length")]
    (streamed,) = Server(events).streamed(MINIMAL).content
    (created,) = Server(events).created(MINIMAL).content
    assert streamed.type == created.type == "tool_use"
    assert streamed.input == created.input


def test_unicode_line_separators_do_not_split_a_frame() -> None:
    events: list[Event] = [Usage(1), TextDelta("a\u2028b\u2029c\x85d\x0be"), Finish("stop")]
    (block,) = Server(events).streamed(MINIMAL).content
    assert block.type == "text"
    assert block.text == "a\u2028b\u2029c\x85d\x0be"


def test_count_tokens() -> None:
    with Server([]).client as client:
        counted: MessageTokensCount = client.messages.count_tokens(
            model="m", messages=[{"role": "user", "content": "Hi"}]
        )
    assert counted.input_tokens == 216


ERRORS: list[tuple[DovetailError, int, str]] = [
    (InvalidRequest("bad", param="messages[0]"), 400, "invalid_request_error"),
    (Unauthenticated("who?"), 401, "authentication_error"),
    (Forbidden("no"), 403, "permission_error"),
    (NotFound("no such model"), 404, "not_found_error"),
    (RequestTooLarge("32 MB"), 413, "request_too_large"),
    (ContextOverflow("210000 tokens > 200000 maximum"), 400, "invalid_request_error"),
    (RateLimited("slowly", retry_after=1.2), 429, "rate_limit_error"),
    (Unsupported("not offered"), 400, "invalid_request_error"),
    (EngineError("broke"), 500, "api_error"),
    (EngineUnavailable("gone"), 503, "overloaded_error"),
    (EngineTimeout("late"), 503, "api_error"),
    (Overloaded("full"), 529, "overloaded_error"),
    (InternalError("ours"), 500, "api_error"),
]


@pytest.mark.parametrize(("error", "status", "kind"), ERRORS, ids=[e.kind for e, _, _ in ERRORS])
def test_error_before_the_stream(error: DovetailError, status: int, kind: str) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        Server([], error).created(MINIMAL)
    assert caught.value.status_code == status
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == kind
    assert error.message in caught.value.body["error"]["message"]


def message_of(error: DovetailError) -> str:
    found: str = msgspec.json.decode(CODEC.encode_error(error).body)["error"]["message"]
    return found


def test_claude_code_compacts_when_the_prompt_is_too_long() -> None:
    message = "prompt is too long: 210000 tokens > 200000 maximum"
    assert message_of(ContextOverflow("210000 tokens > 200000 maximum")) == message
    assert message_of(ContextOverflow(message)) == message


def test_parameter_precedes_the_message() -> None:
    assert message_of(InvalidRequest("bad", param="tools[0]")) == "tools[0]: bad"
    assert message_of(InvalidRequest("tools[0]: bad", param="tools[0]")) == "tools[0]: bad"


def test_retry_after_is_in_whole_seconds() -> None:
    response = CODEC.encode_error(RateLimited("slowly", retry_after=1.2))
    assert response.headers == (("retry-after", "2"),)
    assert CODEC.encode_error(NotFound("x")).headers == ()
