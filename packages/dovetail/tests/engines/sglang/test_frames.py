"""Conversion of SGLang's frames to deltas, for any split of the stream."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_fixture import END, TOKENIZER
from sglang_fixture import Json, event, frames, make_request, meta

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.sampling import UNKNOWN_LOGPROB
from dovetail.engines.sglang.frames import SglangFrameReader
from dovetail.net.client_connection import SseDataReader
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

STOP: Json = {"type": "stop", "matched": END}
LENGTH: Json = {"type": "length", "length": 5}
DONE = b"data: [DONE]\n\n"


def frame(ids: list[int] | None, count: int, finish: Json | None = None, **more: Any) -> Json:
    return {"text": "", "output_ids": ids, "meta_info": meta(count, finish=finish, **more)}


def read(sent: Sequence[Json], request: EngineRequest | None = None) -> list[TokenDelta]:
    """Return the deltas of frames that arrive one by one, up to the one with a finish."""
    reader, deltas = SglangFrameReader(request or make_request(), TOKENIZER), []
    for one in sent:
        delta = reader.read([msgspec.json.encode(one)])
        if delta is not None:
            deltas.append(delta)
            if delta.finish is not None:
                break
    return deltas


ENDED = TokenDelta([END], finish="stop")
CASES: list[tuple[str, list[Json], list[TokenDelta]]] = [
    (
        "all ids so far in every frame",
        [frame([5], 1), frame([5, 6], 2), frame([5, 6, END], 3, STOP)],
        [TokenDelta([5]), TokenDelta([6]), ENDED],
    ),
    (
        "only the new ids",
        [frame([5], 1), frame([6], 2), frame([END], 3, STOP)],
        [TokenDelta([5]), TokenDelta([6]), ENDED],
    ),
    (
        "the same token again is not a repetition",
        [frame([5], 1), frame([5], 2), frame([5, 5], 4), frame([END], 5, STOP)],
        [TokenDelta([5]), TokenDelta([5]), TokenDelta([5, 5]), ENDED],
    ),
    (
        "digits of one id are not those of another",
        [frame([12], 1), frame([123], 2), frame([1234], 3), frame([END], 4, STOP)],
        [TokenDelta([12]), TokenDelta([123]), TokenDelta([1234]), ENDED],
    ),
    (
        "several ids per frame, and frames without ids",
        [
            frame([], 0),
            frame([], 0),
            frame([5, 6], 2),
            frame([5, 6], 2),
            frame([5, 6, 7, END], 4, STOP),
        ],
        [TokenDelta([5, 6]), TokenDelta([7, END], finish="stop")],
    ),
    (
        "everything in one frame",
        [frame([5, 6, END], 3, STOP)],
        [TokenDelta([5, 6, END], finish="stop")],
    ),
    (
        "a stop token that is counted but not in the cumulative ids",
        [frame([5], 1), frame([5], 2, STOP)],
        [TokenDelta([5]), ENDED],
    ),
    (
        "a stop token that is counted but not in the new ids",
        [frame([5], 1), frame([6], 2), frame([], 3, STOP)],
        [TokenDelta([5]), TokenDelta([6]), ENDED],
    ),
    (
        "an end without new ids",
        [frame([5, 6], 2), frame([], 2, LENGTH)],
        [TokenDelta([5, 6]), TokenDelta([], finish="length")],
    ),
    (
        "missing ids are an empty list",
        [frame([5, 6], 2), frame(None, 2, LENGTH)],
        [TokenDelta([5, 6]), TokenDelta([], finish="length")],
    ),
    (
        "a text that stopped it is not a token",
        [frame([5], 1), frame([5, 6], 2, {"type": "stop", "matched": "NaN happened"})],
        [TokenDelta([5]), TokenDelta([6], finish="stop")],
    ),
    (
        "cached tokens are reported once",
        [frame([5], 1, cached_tokens=7), frame([5, END], 2, STOP, cached_tokens=7)],
        [TokenDelta([5], cached=7), ENDED],
    ),
    (
        "a prompt count that differs from the request",
        [
            {"output_ids": [5], "meta_info": meta(1, 1)},
            {"output_ids": [5, END]} | {"meta_info": meta(2, 1, STOP)},
        ],
        [TokenDelta([5], exact=False), TokenDelta([END], finish="stop", exact=False)],
    ),
    (
        "a server that does not stop",
        [frame([5], 1), frame([6, END, 7], 4), frame([8], 5, LENGTH)],
        [TokenDelta([5]), TokenDelta([6, END], finish="stop")],
    ),
]


@pytest.mark.parametrize(("sent", "deltas"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_frames(sent: list[Json], deltas: list[TokenDelta]) -> None:
    assert read(sent) == deltas


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("limit", [1, 3, 4])
def test_limit_is_enforced_if_the_server_continues(limit: int, repeats: bool) -> None:
    sent = list(frames([[5], [6, 7], [8]], {"type": "length"}, repeats=repeats))
    deltas = read(sent, make_request(limit))
    assert [id for delta in deltas for id in delta.ids] == [5, 6, 7, 8][:limit]
    assert deltas[-1].finish == "length"


def test_is_finished_only_when_the_server_has_ended() -> None:
    reader = SglangFrameReader(make_request(1), TOKENIZER)
    truncated = reader.read([msgspec.json.encode(frame([5], 1))])
    assert truncated == TokenDelta([5], finish="length")
    assert not reader.is_finished
    reader = SglangFrameReader(make_request(1), TOKENIZER)
    reader.read([msgspec.json.encode(frame([5], 1, LENGTH))])
    assert reader.is_finished


ABORT = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
LONG = "The input (9 tokens) is longer than the model's context length (8 tokens)."
FAULTS: list[tuple[str, list[Json], type[DovetailError], str]] = [
    ("a gap", [frame([5], 1), frame([7], 3)], EngineError, "reported 3 generated tokens after 1"),
    ("a gap in the first frame", [frame([5], 3)], EngineError, "do not match that count"),
    ("too many", [frame([5], 1), frame([6, 7, 8], 2)], EngineError, "do not match that count"),
    (
        "others than before",
        [frame([5], 1), frame([6, 7], 2)],
        EngineError,
        "do not match that count",
    ),
    (
        "first all, then the new ones",
        [frame([5], 1), frame([5, 6], 2), frame([7], 3)],
        EngineError,
        "do not match that count",
    ),
    (
        "first the new ones, then all",
        [frame([5], 1), frame([6], 2), frame([5, 6, 7], 3)],
        EngineError,
        "do not match that count",
    ),
    ("no count", [{"output_ids": [5], "meta_info": {}}], EngineError, "without completion_tokens"),
    ("no ids", [{"output_ids": ["x"], "meta_info": meta(1)}], EngineError, "cannot be decoded"),
    ("aborted", [frame([], 0, ABORT)], EngineUnavailable, "aborted the request: Aborted"),
    (
        "too long for the pool",
        [frame([], 0, ABORT | {"status_code": 400, "message": LONG})],
        ContextOverflow,
        "context length",
    ),
    (
        "a grammar that it does not like",
        [frame([], 0, ABORT | {"status_code": 400, "message": "Failed to compile ebnf"})],
        InvalidRequest,
        "Failed to compile",
    ),
    (
        "no room",
        [frame([], 0, ABORT | {"status_code": 503, "message": "The request queue is full."})],
        Overloaded,
        "queue is full",
    ),
    (
        "an error frame",
        [{"error": {"message": LONG, "type": "invalid_request_error", "code": 400}}],
        ContextOverflow,
        "longer than the model's",
    ),
    (
        "an error frame without a code",
        [{"error": {"message": "max_output_tokens must be specified for mocker"}}],
        EngineError,
        "must be specified",
    ),
]


@pytest.mark.parametrize(
    ("sent", "kind", "words"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_inconsistent_frames_are_errors(
    sent: list[Json], kind: type[DovetailError], words: str
) -> None:
    with pytest.raises(DovetailError, match=words) as fault:
        read(sent)
    assert type(fault.value) is kind


def test_stream_without_a_finish_is_an_error() -> None:
    reader = SglangFrameReader(make_request(), TOKENIZER)
    with pytest.raises(EngineUnavailable, match="without a finish reason"):
        reader.read([msgspec.json.encode(frame([5], 1)), b"[DONE]"])


def logprob_fields(*ids: int) -> Json:
    """Return logprobs in SGLang's format, with values derived from the ids."""
    return {
        "output_token_logprobs": [[-id / 100, id, None] for id in ids],
        "output_top_logprobs": [[[-id / 100, id, None], [-9.0, 66, None]] for id in ids],
    }


def expected(id: int, top: int) -> TokenLogprob:
    top_logprobs = ((chr(id), -id / 100), ("B", -9.0))[:top]
    return TokenLogprob(chr(id), -id / 100, top_logprobs)


@pytest.mark.parametrize("top", [0, 1, 2])
@pytest.mark.parametrize("repeats", [True, False])
def test_logprobs(repeats: bool, top: int) -> None:
    sent = [frame([97], 1, **logprob_fields(97))]
    if repeats:
        sent.append(frame([97, 98, 99], 3, LENGTH, **logprob_fields(97, 98, 99)))
    else:
        sent.append(frame([98, 99], 3, LENGTH, **logprob_fields(98, 99)))
    first, last = read(sent, make_request(sampling=Sampling(logprobs=top)))
    assert first.logprobs == (expected(97, top),)
    assert last.logprobs == (expected(98, top), expected(99, top))


def test_missing_or_mismatched_logprobs() -> None:
    odd = [[None, 97, None], [-0.5, 5, None]]
    sent = frame([97, 98, 99], 3, LENGTH, output_token_logprobs=odd)
    (delta,) = read([sent], make_request(sampling=Sampling(logprobs=1)))
    assert [one.logprob for one in delta.logprobs] == [UNKNOWN_LOGPROB] * 3


IDS = st.lists(st.integers(3, 2**17).filter(lambda id: id != END), max_size=30)
SPLIT_LENGTHS = st.lists(st.integers(1, 400), max_size=40)


def pieces(data: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Split the bytes at these lengths."""
    places = [0]
    for length in lengths:
        places.append(min(places[-1] + length, len(data)))
    return [data[a:b] for a, b in zip(places, [*places[1:], len(data)], strict=True) if a < b]


@given(
    st.lists(IDS, min_size=1, max_size=8),
    SPLIT_LENGTHS,
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_split_of_any_response_gives_its_ids(
    parts: list[list[int]], lengths: list[int], repeats: bool, stops: bool, spaced: bool
) -> None:
    """The result does not depend on the server's frames or on the network's packets."""
    parts = [*parts, [END]] if stops else parts
    finish = {"type": "stop", "matched": END} if stops else {"type": "length"}
    sent = [event({**frame, "text": "é漢🦜"}) for frame in frames(parts, finish, repeats=repeats)]
    stream = b"".join(sent).replace(b",", b", ") if spaced else b"".join(sent)
    payloads, reader = SseDataReader(), SglangFrameReader(make_request(10**9), TOKENIZER)
    deltas: list[TokenDelta] = []
    for piece in pieces(stream + DONE, lengths):
        found = payloads.feed(piece)
        delta = reader.read(found) if found and not reader.is_finished else None
        deltas += [delta] if delta is not None else []
    assert [id for delta in deltas for id in delta.ids] == [id for part in parts for id in part]
    assert [delta.finish for delta in deltas if delta.finish] == ["stop" if stops else "length"]
    assert [delta.cached for delta in deltas if delta.cached is not None] == [0]
    assert all(delta.exact for delta in deltas)


def test_only_the_last_of_cumulative_frames_is_decoded() -> None:
    reader = SglangFrameReader(make_request(), TOKENIZER)
    reader.read([msgspec.json.encode(frame([5], 1))])
    reader.read([msgspec.json.encode(frame([5, 6], 2))])
    last = msgspec.json.encode(frame([5, 6, 7, 8, 9], 5))
    assert reader.read([b"this would not be understood", last]) == TokenDelta([7, 8, 9])


INVALID_FRAMES: dict[str, bytes] = {
    "a negative id": msgspec.json.encode(frame([-1], 1)),
    "an id of 33 bits": msgspec.json.encode(frame([2**32], 1)),
    "a negative stop token": msgspec.json.encode(
        frame([], 1, {"type": "stop", "matched": -1}),
    ),
    "a nested frame": b'{"x": ' + b"[" * 600 + b"]" * 600 + b"}",
    "a frame nested more than the decoder accepts": b'{"x": '
    + b"[" * 50_000
    + b"]" * 50_000
    + b"}",
    "invalid UTF-8": b'{"error": {"message": "\xff"}}',
}


@pytest.mark.parametrize("payload", INVALID_FRAMES.values(), ids=INVALID_FRAMES)
def test_invalid_frames_are_engine_errors(payload: bytes) -> None:
    with pytest.raises(EngineError, match="SGLang sent a frame that cannot be decoded"):
        SglangFrameReader(make_request(), TOKENIZER).read([payload])
