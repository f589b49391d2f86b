"""Frames are found however the bytes are divided."""

import random
from array import array

import pytest

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta
from dovetail.engines.steps.framing import MAX_FRAME_BYTES, FrameReader, FrameTooLarge, encode_frame
from dovetail.engines.steps.messages import (
    Generate,
    Step,
    decode_client_message,
    decode_engine_message,
    to_message,
    to_request,
)
from dovetail_model import Sampling

REQUEST = EngineRequest(
    id="r",
    prompt=array("I", range(5000)),
    max_tokens=7,
    sampling=Sampling(temperature=0.5, logit_bias=((3, 1.5),), logprobs=2),
    stop_ids=frozenset({9, 4}),
    constraint=Constraint("ebnf", 'root ::= "a"'),
    session="s",
    priority=3,
    cache_salt="salt",
    expected_tokens=100,
    ends_session=True,
    adapter="poet",
)


def test_a_request_arrives_unchanged() -> None:
    message = decode_client_message(encode_frame(to_message(1, REQUEST))[4:])
    assert isinstance(message, Generate)
    assert to_request(message) == REQUEST


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_found_at_any_division(seed: int) -> None:
    dice = random.Random(seed)
    steps = [Step([n], [TokenDelta([n] * dice.randrange(1, 2000))]) for n in range(30)]
    data = b"".join(encode_frame(step) for step in steps)
    reader, found = FrameReader(), []
    at = 0
    while at < len(data):
        size = dice.choice((1, 2, 3, 4, 5, 100, 5000, 20000))
        found += [decode_engine_message(frame) for frame in reader.feed(data[at : at + size])]
        at += size
    assert found == steps


def test_a_token_takes_few_bytes() -> None:
    size = len(encode_frame(Step(list(range(64)), [TokenDelta([100_000])] * 64)))
    assert size < 64 * 14


def test_a_huge_frame_is_rejected_before_it_is_received() -> None:
    with pytest.raises(FrameTooLarge):
        list(FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little")))
