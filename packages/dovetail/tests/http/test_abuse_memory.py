"""Caches are bounded by their size in bytes, not only by their number of entries."""

from typing import Any

import pytest
from http_fixture import NAME, run, serving

from dovetail.ledger.history_match import HistoryMatch, HistoryMatchCache, MatchStep, TurnMatch
from dovetail.ledger.turn_digest import TurnDigestCache
from dovetail.pipeline.stop_sequences import (
    MAX_STOP_SEQUENCE_CHARS,
    MAX_STOP_TOTAL_CHARS,
    StopSequenceMatcher,
)
from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    InvalidRequest,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

BIG = "x" * 1000
BLOCKS: dict[str, Block] = {
    "text": TextBlock(BIG),
    "a thought": ReasoningBlock(BIG),
    "a seal": ReasoningBlock("", BIG),
    "a call": ToolCallBlock("c", "run", BIG),
    "a result": ToolResultBlock("c", (TextBlock(BIG),)),
    "an image": ImageBlock("image/png", BIG, None),
    "a document": DocumentBlock(text=BIG),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_digest_cache_of_large_turns_is_bounded(kind: str) -> None:
    digests = TurnDigestCache(max_turns=1000, max_chars=10_000)
    turns = [Turn("user", (BLOCKS[kind],)) for _ in range(50)]
    seen = [digests.get(turn) for turn in turns]
    assert all(one.chars >= len(BIG) for one in seen)
    held = [turn for turn, _ in digests._digests.values()]
    assert held == turns[-len(held) :]
    assert 5 <= len(held) <= 10
    assert digests._digests.total_size == sum(digests.get(turn).chars for turn in held)


def test_turn_larger_than_the_cache_is_not_cached() -> None:
    digests = TurnDigestCache(max_chars=100)
    assert digests.get(Turn("user", (TextBlock(BIG),))).chars == 1000
    assert not digests._digests
    assert digests._digests.total_size == 0


def test_cache_of_long_histories_is_bounded() -> None:
    walks = HistoryMatchCache(max_chars=10_000)
    for number in range(50):
        walks.put(("tenant", f"session-{number}", b""), _walk(1000))
    assert len(walks._matches) == 10
    for _ in range(50):
        walks.put(("tenant", "session-49", b""), _walk(1000))
    assert (len(walks._matches), walks._matches.total_size) == (10, 10_000)
    walks.put(("tenant", "another", b""), _walk(10_001))
    assert (len(walks._matches), walks._matches.total_size) == (0, 0)


@pytest.mark.parametrize(
    "stops",
    [
        ["x" * (MAX_STOP_SEQUENCE_CHARS + 1)],
        [str(n) * 100 for n in range(MAX_STOP_TOTAL_CHARS // 100)],
    ],
)
def test_stop_sequences_are_bounded(stops: list[str]) -> None:
    """All prefixes of a sequence are stored: for a million characters, they would take 500 GB."""
    with pytest.raises(InvalidRequest):
        StopSequenceMatcher(stops)


def test_longest_stop_sequence_is_matched() -> None:
    stop = StopSequenceMatcher(["x" * MAX_STOP_SEQUENCE_CHARS])
    assert stop.feed("a" + "x" * (MAX_STOP_SEQUENCE_CHARS - 1)) == "a"
    assert stop.feed("x") == ""
    assert stop.found == "x" * MAX_STOP_SEQUENCE_CHARS


def test_too_long_stop_sequences_are_reported() -> None:
    async def scene() -> None:
        async with serving() as stage:
            message = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}]}
            stop: Any = ["x" * (1 << 20)]
            for path, body in (
                ("/v1/chat/completions", {**message, "stop": stop}),
                ("/v1/messages", {**message, "max_tokens": 9, "stop_sequences": stop}),
                ("/v1/completions", {"model": NAME, "prompt": "Hi", "stop": stop}),
            ):
                for stream in (False, True):
                    reply = await stage.request("POST", path, {**body, "stream": stream})
                    assert reply.status == 400, (path, reply.body)
                    assert "Stop sequences" in reply.json["error"]["message"]
            assert not stage.engine.requests

    run(scene)


def _walk(size: int) -> HistoryMatch:
    walk = HistoryMatch((Turn("user", ()),))
    walk.add(MatchStep(b"", b"", TurnMatch(b"", None, "nothing"), b"", 0, size))
    return walk
