"""Every case in one piece, per character and in random pieces: the same blocks and raw text."""

import random
from collections.abc import Iterator

import pytest
from parser_cases import Case, check, load

from dovetail_model import Event, Message, fold
from dovetail_parsers import families

CASES = load()
IN_FULL = {
    "hermes",
    "qwen3_coder",
    "glm47",
    "kimi_k2",
    "kimi_k3",
    "minimax_m2",
    "minimax_m3",
    "deepseek_v3_1",
    "deepseek_v4",
    "harmony",
    "gemma4",
    "mistral",
}


def run(case: Case, pieces: Iterator[str]) -> tuple[list[Event], Message]:
    parser = case.parser()
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed(piece)
    events += parser.finish()
    return events, fold(events)


def cuts(text: str, seed: int) -> Iterator[str]:
    at, dice = 0, random.Random(seed)
    while at < len(text):
        size = dice.randint(1, 9)
        yield text[at : at + size]
        at += size


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}-{case.id}")
def test_case(case: Case) -> None:
    events, whole = run(case, iter([case.text]))
    check(case, whole)
    assert "".join(getattr(event, "raw", "") for event in events) == case.text
    for pieces in (iter(case.text), cuts(case.text, 1), cuts(case.text, 2), cuts(case.text, 3)):
        message = run(case, pieces)[1]
        assert message.blocks == whole.blocks
        assert message.raw == whole.raw == case.text


def test_every_family_has_cases() -> None:
    count = {family.name: 0 for family in families()}
    for case in CASES:
        count[case.family] += 1
    too_few = {name: n for name, n in count.items() if n < (14 if name in IN_FULL else 5)}
    assert not too_few
