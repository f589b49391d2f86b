"""Conversion of llama.cpp's frames to deltas, and encoded requests."""

import json
from array import array
from typing import Any

import msgspec
import pytest

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta
from dovetail.engines.llamacpp.frames import LlamaCppFrameReader, TokenIdRecovery
from dovetail.engines.llamacpp.request import encode_request, error_from_status
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    Sampling,
    TokenLogprob,
    Unsupported,
)
from dovetail_tokenizers import ByteTokenizer

BYTES = ByteTokenizer()
REQUEST = EngineRequest("r", array("i", [1, 2]), 10, stop_ids=frozenset({0}))


def token(text: str, ids: list[int], count: int, **more: Any) -> dict[str, Any]:
    return {"content": text, "tokens": ids, "stop": False, "tokens_predicted": count, **more}


def end(kind: str, count: int, **more: Any) -> dict[str, Any]:
    return {"content": "", "tokens": [], "stop": True, "stop_type": kind} | {
        "tokens_predicted": count,
        **more,
    }


def read(frames: list[dict[str, Any]], request: EngineRequest = REQUEST) -> list[TokenDelta]:
    """Return the deltas up to the one with a finish, as the engine reads them."""
    reader, deltas = LlamaCppFrameReader(request, BYTES, TokenIdRecovery(BYTES)), []
    for frame in frames:
        delta = reader.read([json.dumps(frame).encode()])
        if delta is not None:
            deltas.append(delta)
            if delta.finish is not None:
                break
    return deltas


PROGRESS = token("", [0], 0, prompt_progress={"total": 2, "cache": 1, "processed": 2})
A, B = token("a", [97], 1), token("b", [98], 2)
LATE = end("limit", 0, timings={"cache_n": 7})
CASES: list[tuple[str, list[dict[str, Any]], list[TokenDelta]]] = [
    (
        "progress has no tokens and reports cached tokens once",
        [PROGRESS, PROGRESS, A, B],
        [TokenDelta([97], cached=1), TokenDelta([98])],
    ),
    (
        "a stop id ends the turn",
        [A, token("", [0], 2), B],
        [
            TokenDelta([97]),
            TokenDelta([0], finish="stop"),
        ],
    ),
    (
        "a stop id among others",
        [token("a?b", [97, 0, 98], 3)],
        [
            TokenDelta([97, 0], finish="stop"),
        ],
    ),
    (
        "an end that only llama.cpp knows",
        [A, end("eos", 1)],
        [
            TokenDelta([97]),
            TokenDelta([], finish="stop"),
        ],
    ),
    (
        "the window is full",
        [A, end("limit", 1)],
        [
            TokenDelta([97]),
            TokenDelta([], finish="length"),
        ],
    ),
    (
        "omitted ids are recovered",
        [A, token("é", [0xA9], 3), token("b", [98], 4)],
        [
            TokenDelta([97]),
            TokenDelta([0xC3, 0xA9]),
            TokenDelta([98]),
        ],
    ),
    (
        "unrecoverable ids at the end are reported",
        [A, end("limit", 3)],
        [
            TokenDelta([97]),
            TokenDelta([], finish="length", exact=False),
        ],
    ),
    (
        "cached tokens are reported at the end if not earlier",
        [LATE],
        [
            TokenDelta([], finish="length", cached=7),
        ],
    ),
]


@pytest.mark.parametrize(("frames", "deltas"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_deltas(frames: list[dict[str, Any]], deltas: list[TokenDelta]) -> None:
    assert read(frames) == deltas


@pytest.mark.parametrize(("limit", "ids"), [(1, [97]), (2, [97, 0xC3]), (3, [97, 0xC3, 0xA9])])
def test_limit(limit: int, ids: list[int]) -> None:
    request = msgspec.structs.replace(REQUEST, max_tokens=limit)
    deltas = read([A, token("é", [0xA9], 3), B], request)
    assert [id for delta in deltas for id in delta.ids] == ids
    assert deltas[-1].finish == "length"


def test_stop_id_beyond_the_limit_is_ignored() -> None:
    request = msgspec.structs.replace(REQUEST, max_tokens=1)
    assert read([token("ab", [97, 0], 2)], request) == [TokenDelta([97], finish="length")]


def test_logprobs() -> None:
    top = [{"id": 97, "token": "a", "logprob": -0.5}, {"id": 98, "token": "b", "logprob": -1.5}]
    reported = [{"id": 97, "token": "a", "logprob": -0.5, "top_logprobs": top}]
    frame = token("a", [97], 1, completion_probabilities=reported)
    for count, tops in [(0, ()), (1, (("a", -0.5),)), (5, (("a", -0.5), ("b", -1.5)))]:
        request = msgspec.structs.replace(REQUEST, sampling=Sampling(logprobs=count))
        assert read([frame], request)[0].logprobs == (TokenLogprob("a", -0.5, tops),)
    assert read([frame])[0].logprobs == ()


ERRORS: list[tuple[int, dict[str, Any] | str, type[DovetailError]]] = [
    (400, {"code": 400, "type": "exceed_context_size_error", "message": "x"}, ContextOverflow),
    (400, {"code": 400, "type": "invalid_request_error", "message": "x"}, InvalidRequest),
    (503, {"code": 503, "type": "unavailable_error", "message": "x"}, EngineUnavailable),
    (500, {"code": 500, "type": "server_error", "message": "x"}, EngineError),
    (502, "<html>", EngineError),
]


@pytest.mark.parametrize(("status", "fault", "kind"), ERRORS)
def test_errors(status: int, fault: dict[str, Any] | str, kind: type[DovetailError]) -> None:
    content = fault if isinstance(fault, str) else json.dumps({"error": fault})
    assert type(error_from_status(status, content.encode())) is kind
    with pytest.raises(kind):
        LlamaCppFrameReader(REQUEST, BYTES, TokenIdRecovery(BYTES)).read([content.encode()])


def test_encoded_request() -> None:
    sampling = Sampling(
        temperature=0.0, top_k=5, repetition_penalty=1.1, seed=-1, logprobs=0, stop=("x",)
    )
    request = msgspec.structs.replace(
        REQUEST, sampling=sampling, constraint=Constraint("gbnf", 'root ::= "a"')
    )
    sent = json.loads(encode_request(request, 3))
    assert sent == {
        "prompt": [1, 2],
        "n_predict": 13,
        "id_slot": 3,
        "stream": True,
        "cache_prompt": True,
        "return_tokens": True,
        "return_progress": True,
        "temperature": 0.0,
        "top_k": 5,
        "repeat_penalty": 1.1,
        "seed": 2**32 - 2,
        "n_probs": 1,
        "grammar": 'root ::= "a"',
    }
    with pytest.raises(Unsupported, match="does not support json_schema constraints"):
        encode_request(
            msgspec.structs.replace(REQUEST, constraint=Constraint("json_schema", "{}")), 0
        )


INVALID_FRAMES: dict[str, bytes] = {
    "a negative id": json.dumps(token("a", [-1], 1)).encode(),
    "an id of 33 bits": json.dumps(token("a", [2**32], 1)).encode(),
    "a nested frame": b'{"x": ' + b"[" * 600 + b"]" * 600 + b"}",
    "a frame nested more than the decoder accepts": b'{"x": '
    + b"[" * 50_000
    + b"]" * 50_000
    + b"}",
    "nested logprobs": b'{"completion_probabilities": ['
    + b'{"id": 1, "top_logprobs": [' * 300
    + b"]}" * 300
    + b"]}",
    "invalid UTF-8": b'{"content": "\xff"}',
}


@pytest.mark.parametrize("payload", INVALID_FRAMES.values(), ids=INVALID_FRAMES)
def test_invalid_frames_are_engine_errors(payload: bytes) -> None:
    with pytest.raises(EngineError, match=r"llama.cpp sent a frame that cannot be decoded"):
        LlamaCppFrameReader(REQUEST, BYTES, TokenIdRecovery(BYTES)).read([payload])
