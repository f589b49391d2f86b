"""Text completions as clients receive them, streaming and non-streaming."""

from typing import Any

import httpx2
import msgspec
import pytest
from generated_events import scripts
from golden_transcripts import CountingIds, clock
from hypothesis import given
from hypothesis import strategies as st
from openai import APIError, OpenAI

from dovetail_model import (
    Event,
    Failure,
    Finish,
    InvalidRequest,
    Logprobs,
    TextDelta,
    TokenLogprob,
    Usage,
    fold,
)
from dovetail_protocols import SseReader
from dovetail_protocols.completions import CODEC

EVENTS: list[Event] = [
    Usage(input_tokens=3),
    Logprobs((TokenLogprob(" upon", -0.5, ((" upon", -0.5), (" a", -1.5))),)),
    TextDelta(" upon"),
    Logprobs((TokenLogprob(" a", -0.1, ((" a", -0.1),)), TokenLogprob(" t", float("-inf")))),
    TextDelta(" a t"),
    Usage(3, 3, 2),
    Finish("stop_sequence", "ime"),
]


def body(**fields: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "prompt": "Once", **fields})


def stream(events: list[Event], **fields: Any) -> bytes:
    return CODEC.stream(CODEC.decode(body(**fields), {}), CountingIds(), clock).encode(events)


def whole(events: list[Event], **fields: Any) -> Any:
    request = CODEC.decode(body(**fields), {})
    response = CODEC.encode_message(request, [fold(events)], CountingIds(), clock)
    return msgspec.json.decode(response)


def joined(content: bytes) -> list[Any]:
    """Return the choices of a stream, with their texts and lists joined."""
    found: dict[int, Any] = {}
    for event in SseReader().feed(content):
        chunk = msgspec.json.decode(event.data) if event.data != "[DONE]" else {"choices": []}
        for choice in chunk["choices"]:
            into = found.setdefault(choice["index"], {**choice, "text": "", "logprobs": None})
            into["text"] += choice["text"]
            into["finish_reason"] = choice["finish_reason"]
            into.update({key: choice[key] for key in ("stop_reason",) if key in choice})
            if choice["logprobs"]:
                into["logprobs"] = _longer(into["logprobs"], choice["logprobs"])
    return [found[index] for index in sorted(found)]


def _longer(before: Any, more: Any) -> Any:
    if before is None:
        return more
    return {key: before[key] + more[key] if more[key] is not None else None for key in more}


def test_chunks_of_a_stream() -> None:
    data = [event.data for event in SseReader().feed(stream([TextDelta(" a"), Finish("length")]))]
    head = '{"id":"cmpl-0001","object":"text_completion","created":1760000000,"model":"m",'
    assert data == [
        head + '"choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":null}]}',
        head + '"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}]}',
        "[DONE]",
    ]


def test_non_streaming_completion() -> None:
    assert whole(EVENTS, logprobs=2) == {
        "id": "cmpl-0001",
        "object": "text_completion",
        "created": 1760000000,
        "model": "m",
        "choices": [
            {
                "text": " upon a t",
                "index": 0,
                "logprobs": {
                    "text_offset": [0, 5, 7],
                    "token_logprobs": [-0.5, -0.1, -9999.0],
                    "tokens": [" upon", " a", " t"],
                    "top_logprobs": [{" upon": -0.5, " a": -1.5}, {" a": -0.1}, {}],
                },
                "finish_reason": "stop",
                "stop_reason": "ime",
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def test_prompt_is_echoed_once() -> None:
    assert whole(EVENTS, echo=True)["choices"][0]["text"] == "Once upon a t"
    assert joined(stream(EVENTS, echo=True))[0]["text"] == "Once upon a t"


def test_usage_is_the_last_chunk_if_requested() -> None:
    events = SseReader().feed(stream(EVENTS, stream_options={"include_usage": True}))
    last = msgspec.json.decode(events[-2].data)
    assert last["choices"] == []
    assert last["usage"] == whole(EVENTS)["usage"]
    assert events[-1].data == "[DONE]"


@given(scripts(), st.booleans(), st.sampled_from([None, 0, 2]))
def test_stream_adds_up_to_the_complete_response(
    events: list[Event], echo: bool, logprobs: int | None
) -> None:
    fields = {"echo": echo} if echo else {"logprobs": logprobs}
    assert joined(stream(events, **fields)) == whole(events, **fields)["choices"]


def test_two_choices_end_together() -> None:
    encoder = CODEC.stream(CODEC.decode(body(n=2), {}), CountingIds(), clock)
    first = encoder.encode([TextDelta("a"), Finish("stop")], 1)
    assert b"[DONE]" not in first
    assert encoder.encode([TextDelta("more")], 1) == b""
    second = encoder.encode([TextDelta("b"), Finish("stop")], 0)
    assert second.endswith(b"data: [DONE]\n\n")
    assert [choice["text"] for choice in joined(first + second)] == ["b", "a"]
    assert encoder.encode([TextDelta("c")], 0) == b""


def test_keep_alive_is_a_comment() -> None:
    encoder = CODEC.stream(CODEC.decode(body(), {}), CountingIds(), clock)
    assert encoder.keep_alive().startswith(b":")


def client(content: bytes, kind: str) -> OpenAI:
    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": kind}, content=content)

    http = httpx2.Client(transport=httpx2.MockTransport(respond))
    return OpenAI(api_key="x", base_url="http://test/v1", max_retries=0, http_client=http)


def test_official_sdk_reads_both_forms() -> None:
    content = msgspec.json.encode(whole(EVENTS, logprobs=1))
    response = client(content, "application/json").completions.create(model="m", prompt="Once")
    streaming = client(stream(EVENTS), "text/event-stream").completions
    chunks = streaming.create(model="m", prompt="Once", stream=True)
    assert response.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks)
    assert response.usage is not None
    assert response.usage.total_tokens == 6


def test_failure_within_a_stream_is_raised() -> None:
    content = stream([TextDelta("a"), Failure("engine_timeout", "Too slow."), TextDelta("b")])
    assert b"[DONE]" not in content
    chunks = client(content, "text/event-stream").completions.create(
        model="m", prompt="Once", stream=True
    )
    with pytest.raises(APIError, match=r"Too slow\."):
        list(chunks)


def test_errors_have_the_form_of_chat() -> None:
    response = CODEC.encode_error(InvalidRequest("No.", param="prompt"))
    assert response.status == 400
    assert msgspec.json.decode(response.body)["error"]["param"] == "prompt"
