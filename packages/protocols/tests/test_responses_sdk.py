"""The official client reads Dovetail's bytes, over a transport in memory."""

from typing import Any

import httpx2
import msgspec
import openai
import pytest
from golden_transcripts import CountingIds, Transcript, clock, transcripts
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from dovetail_model import ContextOverflow, RateLimited
from dovetail_protocols import SseReader
from dovetail_protocols.responses import CODEC
from dovetail_protocols.responses.stream_errors import ResponsesStreamErrors

TRANSCRIPTS = [transcript for transcript in transcripts() if transcript.api == "responses"]
EACH = pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda t: t.id)
error_stream = ResponsesStreamErrors().encode
OURS = ("nvext", "client_metadata", "stop")  # fields without an argument in the client


def client(stream: bytes, whole: bytes = b"{}") -> openai.OpenAI:
    """Return a client whose server returns the stream or the complete response, as requested."""

    def respond(request: httpx2.Request) -> httpx2.Response:
        if msgspec.json.decode(request.content).get("stream"):
            headers = {"content-type": "text/event-stream"}
            return httpx2.Response(200, headers=headers, content=stream)
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=whole)

    http = httpx2.Client(transport=httpx2.MockTransport(respond))
    return openai.OpenAI(api_key="k", base_url="http://in.memory/v1", http_client=http)


def arguments(transcript: Transcript) -> dict[str, Any]:
    """Return the request as arguments of the client."""
    body = msgspec.json.decode(transcript.body)
    del body["stream"]
    extra = {name: body.pop(name) for name in OURS if name in body}
    return {**body, "extra_body": extra}


def streamed(transcript: Transcript) -> Any:
    """Return the last event of the stream, as accumulated by the client."""
    with client(transcript.stream()).responses.stream(**arguments(transcript)) as stream:
        return list(stream)[-1]


def plain(response: Response) -> dict[str, Any]:
    """Remove the fields that the client adds by itself."""
    value = response.model_dump()
    for item in value["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or []:
            part.pop("parsed", None)
    return value


@EACH
def test_stream_ends_with_the_complete_response(transcript: Transcript) -> None:
    last = streamed(transcript)
    if transcript.failure() is not None:
        assert last.type == "response.failed"
        assert last.response.error.code == "server_error"
        return
    whole = client(b"", transcript.whole()).responses.create(**arguments(transcript))
    assert last.type == f"response.{whole.status}"
    assert plain(last.response) == plain(whole)


@EACH
def test_final_response_is_available_when_complete(transcript: Transcript) -> None:
    with client(transcript.stream()).responses.stream(**arguments(transcript)) as stream:
        stream.until_done()
        status = msgspec.json.decode(_last(transcript.stream()))["response"]["status"]
        if status == "completed":
            assert stream.get_final_response().status == status
        else:
            with pytest.raises(RuntimeError):
                stream.get_final_response()


@EACH
def test_every_event_matches_the_sdk_types(transcript: Transcript) -> None:
    """The client builds its types without validation; this test validates them."""
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in SseReader().feed(transcript.stream()):
        if not event.event.endswith("_dispatch"):
            adapter.validate_json(event.data)


@EACH
def test_non_streaming_response_matches_the_sdk_types(transcript: Transcript) -> None:
    if transcript.failure() is None:
        Response.model_validate_json(transcript.whole())


def test_overflow_is_a_failed_stream() -> None:
    request = CODEC.decode(b'{"model": "m", "input": "long", "stream": true}', {})
    frames = error_stream(request, ContextOverflow("Too long."), CountingIds(), clock)
    with client(frames).responses.stream(model="m", input="long") as stream:
        events: list[Any] = list(stream)
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert events[-1].response.error.code == "context_length_exceeded"
    assert events[-1].response.error.message == "Too long."


@pytest.mark.parametrize(
    ("seconds", "expected"), [(3, "3s"), (7.37374, "7.4s"), (0.02, "0.1s"), (1.1, "1.1s")]
)
def test_retry_time_is_in_tenths_of_a_second(seconds: float, expected: str) -> None:
    request = CODEC.decode(b'{"model": "m", "input": "x", "stream": true}', {})
    error = RateLimited("Too many.", retry_after=seconds)
    frames = error_stream(request, error, CountingIds(), clock)
    assert f"try again in {expected}.".encode() in frames


def test_rate_limit_in_a_stream_has_the_retry_time() -> None:
    request = CODEC.decode(b'{"model": "m", "input": "x", "stream": true}', {})
    error = RateLimited("Too many requests.", retry_after=3)
    frames = error_stream(request, error, CountingIds(), clock)
    sent = msgspec.json.decode(_last(frames))["response"]["error"]
    assert sent == {
        "code": "rate_limit_exceeded",
        "message": "Too many requests. Please try again in 3s.",
    }


def test_client_sees_a_compaction_as_one_item() -> None:
    from dovetail_model import Finish, TextDelta, Usage

    body = b'{"model": "m", "input": [{"type": "compaction_trigger"}], "stream": true}'
    request = CODEC.decode(body, {})
    encoder = CODEC.stream(request, CountingIds(), clock)
    frames = encoder.encode([Usage(9), TextDelta("All of it."), Usage(9, 3), Finish("stop")])
    with client(frames).responses.stream(model="m", input="") as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["compaction"]


def _last(stream: bytes) -> str:
    return SseReader().feed(stream)[-1].data
