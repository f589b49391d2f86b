"""Conversion of completions frames to deltas, split at any byte and malformed."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engines.completions.errors import error_from_status, is_priority_rejection
from dovetail.engines.completions.frames import CompletionFrameReader
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.net.client_connection import SseDataReader
from dovetail.net.response_parser import ResponseParser
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
    Sampling,
    TokenLogprob,
)
from dovetail_tokenizers import ByteTokenizer

PROMPT = array("I", [1, 2, 3])


def request(**fields: Any) -> EngineRequest:
    return EngineRequest("r", PROMPT, 100, **fields)


def choice(ids: list[int] | None, finish: str | None = None, **more: Any) -> bytes:
    fields = {"index": 0, "text": "é", "token_ids": ids, "finish_reason": finish, **more}
    return json.dumps({"id": "cmpl-1", "model": "m", "choices": [fields]}).encode()


def usage(prompt: int = 3, generated: int | None = None, cached: int | None = None) -> bytes:
    details = None if cached is None else {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": generated}
    return json.dumps(
        {"choices": [], "usage": {**counts, "prompt_tokens_details": details}}
    ).encode()


DONE = b"[DONE]"


def read(*batches: list[bytes], **fields: Any) -> list[TokenDelta]:
    reader = CompletionFrameReader(request(**fields), "vLLM")
    return [delta for batch in batches if (delta := reader.read(batch)) is not None]


STREAMS: list[tuple[str, list[list[bytes]], list[TokenDelta]]] = [
    (
        "as vLLM's Rust frontend: an empty first frame, and the finish in a frame of its own",
        [
            [choice([])],
            [choice([7])],
            [choice([9])],
            [choice([], "stop", stop_reason=9)],
            [usage(generated=2)],
        ],
        [TokenDelta([7]), TokenDelta([9]), TokenDelta([], finish="stop")],
    ),
    (
        "one by one",
        [[choice([7])], [choice([8], "stop")], [usage(generated=2, cached=2)]],
        [TokenDelta([7]), TokenDelta([8], finish="stop", cached=2)],
    ),
    (
        "all at once",
        [[choice([7]), choice([8, 9]), choice([5], "length"), usage(3, 4, 0), DONE]],
        [TokenDelta([7, 8, 9, 5], finish="length", cached=0)],
    ),
    (
        "a prompt that is read in pieces",
        [[choice([])], [choice([7])], [choice([], "stop")], [DONE]],
        [TokenDelta([7]), TokenDelta([], finish="stop")],
    ),
    (
        "no word about the cache",
        [[choice([7], "stop")], [usage(generated=1)]],
        [TokenDelta([7], finish="stop")],
    ),
    ("no usage", [[choice([7], "stop")], [DONE]], [TokenDelta([7], finish="stop")]),
    (
        "a stop id that is only the reason",
        [[choice([7], "stop", stop_reason=9), DONE]],
        [TokenDelta([7, 9], finish="stop")],
    ),
    (
        "a stop id that is reported twice",
        [[choice([7, 9], "stop", stop_reason=9), DONE]],
        [TokenDelta([7, 9], finish="stop")],
    ),
    (
        "a stop text",
        [[choice([7], "stop", stop_reason="x"), DONE]],
        [TokenDelta([7], finish="stop")],
    ),
    (
        "a prompt count that differs from the request",
        [[choice([7], "stop"), usage(prompt=4, generated=1)]],
        [TokenDelta([7], finish="stop", exact=False)],
    ),
    (
        "more tokens than we heard of",
        [[choice([7], "stop"), usage(generated=2)]],
        [TokenDelta([7], finish="stop", exact=False)],
    ),
]


@pytest.mark.parametrize(
    ("batches", "deltas"), [s[1:] for s in STREAMS], ids=[s[0] for s in STREAMS]
)
def test_streams(batches: list[list[bytes]], deltas: list[TokenDelta]) -> None:
    assert read(*batches) == deltas


def test_usage_in_every_frame_does_not_end_the_stream() -> None:
    """Some servers are configured to report usage in every frame."""
    counted = json.loads(choice([7]))
    counted["usage"] = {"prompt_tokens": 3, "completion_tokens": 1}
    last = json.loads(choice([8], "stop"))
    last["usage"] = {"prompt_tokens": 3, "completion_tokens": 2}
    frames = [json.dumps(frame).encode() for frame in (counted, last)]
    deltas = read([frames[0]], [frames[1]], [usage(generated=2, cached=1)])
    assert deltas == [TokenDelta([7]), TokenDelta([8], finish="stop", cached=1)]


def test_cached_tokens_are_reported_as_soon_as_known() -> None:
    early = json.loads(choice([7]))
    early["usage"] = json.loads(usage(generated=1, cached=2))["usage"]
    deltas = read(
        [json.dumps(early).encode()], [choice([8], "stop")], [usage(generated=2, cached=2)]
    )
    assert deltas == [TokenDelta([7], cached=2), TokenDelta([8], finish="stop")]


def test_top_logprobs_are_ranked_by_probability() -> None:
    logprobs = {
        "tokens": ["a", "b"],
        "token_logprobs": [-3.0, None],
        "top_logprobs": [{"a": -3.0, "x": -0.5, "y": -1.0}, None],
        "text_offset": [0, 1],
    }
    batch = [choice([7, 8], logprobs=logprobs), choice([9], "length", logprobs=None), DONE]
    (delta,) = read(batch, sampling=Sampling(logprobs=2))
    assert [one.token for one in delta.logprobs] == ["a", "b"]
    assert delta.logprobs[0].top == (("x", -0.5), ("y", -1.0))
    assert delta.logprobs[1].logprob == -9999.0
    (bare,) = read(batch, sampling=Sampling(logprobs=0))
    assert bare.logprobs[0].top == ()


def test_tokens_identified_by_id_are_decoded() -> None:
    """Two of these tokens are parts of characters and have the same text."""
    named = {f"token_id:{id}": -float(at) for at, id in enumerate((0xC3, 0xE4, 97), 1)}
    logprobs = {
        "tokens": ["token_id:228", "token_id:x"],
        "token_logprobs": [-2.0, -9.0],
        "top_logprobs": [named, {"b": -0.5}],
    }
    reader = CompletionFrameReader(request(sampling=Sampling(logprobs=3)), "vLLM", ByteTokenizer())
    delta = reader.read([choice([228, 98], "length", logprobs=logprobs), DONE])
    assert delta is not None
    part = "\ufffd"
    assert delta.logprobs == (
        TokenLogprob(part, -2.0, ((part, -1.0), (part, -2.0), ("a", -3.0))),
        TokenLogprob("token_id:x", -9.0, (("b", -0.5),)),  # a token that no server sends
    )


BROKEN: list[tuple[str, list[bytes], type[DovetailError], str]] = [
    ("not JSON", [b"{"], EngineError, "vLLM sent a frame that cannot be decoded"),
    ("invalid ids", [choice(["7"])], EngineError, "cannot be decoded"),  # type: ignore[list-item]
    ("no ids", [choice(None)], EngineError, "did not return token ids"),
    ("no reason", [choice([7]), DONE], EngineUnavailable, "without a finish reason"),
    ("empty stream", [DONE], EngineUnavailable, "without a finish reason"),
    ("aborted", [choice([7], "abort")], EngineUnavailable, "aborted the request"),
    ("failed", [choice([7], "error")], EngineError, "unknown finish reason 'error'"),
    (
        "an error in the stream",
        [choice([7]), b'{"error":{"message":"no room","type":"X","code":503}}'],
        EngineUnavailable,
        "no room",
    ),
    (
        "an error without a code",
        [b'{"error":{"message":"oh"}}'],
        EngineError,
        r"failed \(500\): oh",
    ),
    ("a refusal in the stream", [b'{"error":{"message":"no","code":"400"}}'], InvalidRequest, "no"),
]


@pytest.mark.parametrize(
    ("batch", "kind", "words"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN]
)
def test_broken_streams(batch: list[bytes], kind: type[DovetailError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        read(batch)
    assert type(caught.value) is kind


REJECTIONS: list[tuple[int, bytes, type[DovetailError]]] = [
    (
        400,
        b'{"error":{"message":"This model\'s maximum context length is 9 tokens."}}',
        ContextOverflow,
    ),
    (400, b'{"error":{"message":"bad grammar","type":"BadRequestError"}}', InvalidRequest),
    (401, b'{"error":"Unauthorized"}', EngineError),
    (404, b'{"error":{"message":"The model `x` does not exist."}}', EngineUnavailable),
    (404, b'{"detail":"Not Found"}', EngineUnavailable),
    (422, b'{"detail":[{"loc":["body"],"msg":"x"}]}', InvalidRequest),
    (429, b"slow down", Overloaded),
    (500, b"", EngineError),
    (500, b'{"error":{"message":"EngineCore encountered an issue."}}', EngineUnavailable),
    (502, b"<html>bad gateway</html>", EngineUnavailable),
    (503, b'{"error":{"message":"The engine is busy. Please try again later."}}', Overloaded),
    (503, b"", EngineUnavailable),
]


@pytest.mark.parametrize(("status", "content", "kind"), REJECTIONS)
def test_rejections(status: int, content: bytes, kind: type[DovetailError]) -> None:
    error = error_from_status("vLLM", status, content)
    assert type(error) is kind
    assert len(error.message) < 400


def test_priority_rejection_is_recognized() -> None:
    refused = error_from_status("vLLM", 400, b'{"message":"Priority scheduling is not enabled."}')
    assert is_priority_rejection(refused)
    assert not is_priority_rejection(error_from_status("vLLM", 400, b'{"message":"bad grammar"}'))
    assert not is_priority_rejection(error_from_status("vLLM", 500, b'{"message":"priority"}'))


RESPONSE = [
    choice([7]),
    choice([8, 9]),
    choice([300, 5], "stop", stop_reason=5),
    usage(3, 5, 2),
    DONE,
]


def over_http(payloads: list[bytes]) -> bytes:
    frames = [b": alive\n\nevent: x\ndata: " + payload + b"\n\n" for payload in payloads]
    chunks = [b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames]
    return (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"
    )


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_any_split_of_the_bytes_gives_the_same_tokens(sizes: list[int]) -> None:
    wire, at, piece = over_http(RESPONSE), 0, 0
    parser, events, frames = (
        ResponseParser(),
        SseDataReader(),
        CompletionFrameReader(request(), "vLLM"),
    )
    deltas: list[TokenDelta] = []
    while not (deltas and deltas[-1].finish):
        size = sizes[piece % len(sizes)]
        body = parser.feed(wire[at : at + size])
        at, piece = at + size, piece + 1
        delta = frames.read(events.feed(body))
        if delta is not None:
            deltas.append(delta)
    parser.feed(wire[at:])
    assert parser.complete
    assert [id for delta in deltas for id in delta.ids] == [7, 8, 9, 300, 5]
    assert [delta.finish for delta in deltas if delta.finish] == ["stop"]
    assert [delta.cached for delta in deltas if delta.cached is not None] == [2]
    assert all(delta.exact for delta in deltas)


def test_data_on_several_lines_and_without_a_space() -> None:
    reader = SseDataReader()
    assert reader.feed(b"data:a\r\ndata: b\r\n\r\ndata: c\n") == [b"a\nb"]
    assert reader.feed(b"\n") == [b"c"]


INVALID_FRAMES = {
    "a negative id": choice([-1]),
    "an id of 33 bits": choice([2**32]),
    "an id of 64 bits": choice([2**64]),
    "a negative stop token": choice([7], "stop", stop_reason=-1),
    "a stop token of 33 bits": choice([7], "stop", stop_reason=2**32),
    "a nested frame": b'{"choices": [], "x": ' + b"[" * 600 + b"]" * 600 + b"}",
    "a frame nested more than the decoder accepts": b'{"x": '
    + b"[" * 50_000
    + b"]" * 50_000
    + b"}",
    "invalid UTF-8": b'{"choices": [{"finish_reason": "\xff", "token_ids": [1]}]}',
    "invalid UTF-8 in a key": b'{"choices": [{"logprobs": {"top_logprobs": [{"\xff": 1}]}}]}',
}


@pytest.mark.parametrize("frame", INVALID_FRAMES.values(), ids=INVALID_FRAMES)
def test_invalid_frames_are_engine_errors(frame: bytes) -> None:
    with pytest.raises(EngineError, match="vLLM sent a frame that cannot be decoded"):
        read([frame])


def test_largest_id_is_accepted() -> None:
    assert read([choice([0, 2**32 - 1])]) == [TokenDelta([0, 2**32 - 1])]


def test_nested_error_body_is_an_engine_error() -> None:
    error = error_from_status("vLLM", 500, b"[" * 5000)
    assert isinstance(error, EngineError)
