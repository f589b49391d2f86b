"""A cache changes the cost of decoding and the identity of the result, never its value."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from golden_transcripts import CODECS, Transcript, transcripts
from history_bodies import TEXT, agent_turn, history_body
from hypothesis import given, settings
from hypothesis import strategies as st
from repeated_decode_plugin import decode_result

from dovetail_model import Request, TextBlock, ToolCallBlock, ToolResultBlock
from dovetail_protocols import CHAT, MESSAGES, RESPONSES, Codec, DecodeCache
from dovetail_protocols.messages import decode_count

TESTS = Path(__file__).parent
TRANSCRIPTS = list(transcripts())


@pytest.mark.long
def test_all_other_tests_decode_the_same_with_a_cache() -> None:
    files = [
        path for path in sorted(TESTS.glob("test_*.py")) if path.name != "test_decode_cache.py"
    ]
    chosen = [path for path in files if not re.search("sdk|docs|fuzz|read|broken", path.name)]
    # The allowed nesting depth of a body depends on the caller's stack depth, which differs here.
    options = ["-q", "-p", "repeated_decode_plugin", "-p", "no:cacheprovider", "-k", "not nested"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, chosen)],
        cwd=TESTS.parents[2],
        env={**os.environ, "PYTHONPATH": str(TESTS / "support")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    counted = re.search(r"decoded again: (\d+)", done.stdout)
    assert counted is not None
    assert int(counted[1]) > 1000


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda t: t.id)
def test_same_body_returns_identical_objects(transcript: Transcript) -> None:
    cache = DecodeCache()
    decode, body = transcript.codec.decode, transcript.body
    cold, warm = decode(body, {}, cache), decode(body, {}, cache)
    assert decode(body, {}) == cold == warm
    assert same(cold, warm) == len(cold.turns)
    assert all(a is b for a, b in zip(cold.tools, warm.tools, strict=True))


def same(one: Request, other: Request) -> int:
    """Return how many leading turns are the identical objects."""
    pairs = enumerate(zip(one.turns, other.turns, strict=False))
    return next((at for at, (a, b) in pairs if a is not b), min(len(one.turns), len(other.turns)))


# Growing sessions


@pytest.mark.parametrize("api", CODECS)
def test_growing_session_keeps_the_objects_of_its_turns(api: str) -> None:
    codec, cache = CODECS[api], DecodeCache()
    history: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    before = codec.decode(history_body(api, history), {}, cache)
    for number in range(12):
        history += agent_turn(api, number)
        sent = history_body(api, history, metadata={"turn": str(number)})
        now = codec.decode(sent, {}, cache)
        assert now == codec.decode(sent, {})
        assert same(before, now) == len(before.turns) == 1 + 2 * number
        assert now.tools is before.tools
        assert now.system is before.system
        before = now


def test_only_messages_with_moved_cache_control_are_decoded_again() -> None:
    cache, mark = DecodeCache(), {"cache_control": {"type": "ephemeral"}}

    def request_with_marks(*texts: str) -> Request:
        plain = [{"role": "user", "content": text} for text in texts[:-1]]
        marked = [{"type": "text", "text": texts[-1], **mark}]
        sent = history_body("messages", [*plain, {"role": "user", "content": marked}])
        return MESSAGES.decode(sent, {}, cache)

    first, second, third = (
        request_with_marks("a"),
        request_with_marks("a", "b"),
        request_with_marks("a", "b", "c"),
    )
    assert first.turns[0] == second.turns[0]
    assert second.turns[0] is third.turns[0]
    assert second.turns == third.turns[:2]


def test_message_is_the_same_turn_at_any_index_and_in_a_count() -> None:
    cache, first = DecodeCache(), {"role": "user", "content": TEXT}
    one = MESSAGES.decode(history_body("messages", [first]), {}, cache)
    two = MESSAGES.decode(
        history_body("messages", [{"role": "user", "content": "x"}, first]), {}, cache
    )
    count = decode_count(history_body("messages", [first]), {}, cache)
    assert one.turns[0] is two.turns[1] is count.turns[0]


# Results that depend on the index or on neighbours


def test_calls_without_ids_are_numbered_by_their_index_each_time() -> None:
    cache = DecodeCache()
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
    result = {"role": "tool", "content": "r"}
    user = {"role": "user", "content": "x"}
    for history in ([call, result], [user, call, result], [call, result, user, call, result]):
        sent = msgspec.json.encode({"model": "m", "messages": history})
        cold, warm = (CHAT.decode(sent, {}, cache) for _ in range(2))
        assert cold == CHAT.decode(sent, {})
        assert same(cold, warm) == len(history)
        calls = [b.id for t in cold.turns for b in t.blocks if isinstance(b, ToolCallBlock)]
        results = [
            b.call_id for t in cold.turns for b in t.blocks if isinstance(b, ToolResultBlock)
        ]
        assert calls == results == [f"call_{at}_0" for at, m in enumerate(history) if m is call]


def test_ignored_fields_are_named_by_their_path_each_time() -> None:
    cache = DecodeCache()
    strange, user = {"type": "dream"}, {"role": "user", "content": [{"type": "song"}, "x"]}
    for items in ([strange, user], [user, strange], [user, user, strange]):
        sent = msgspec.json.encode({"model": "m", "input": items})
        expected = [
            f"input[{i}]{'' if m is strange else '.content[0]'}" for i, m in enumerate(items)
        ]
        for _ in range(2):
            assert list(RESPONSES.decode(sent, {}, cache).ignored) == expected


def test_tools_from_items_are_cached_by_their_bytes() -> None:
    cache = DecodeCache()
    found = [{"type": "additional_tools", "tools": [{"name": name}]} for name in ("a", "b")]
    shapes = [history_body("responses", items) for items in ([], found[:1], found, found[1:])]
    first = [RESPONSES.decode(sent, {}, cache).tools for sent in shapes]
    assert [[tool.name for tool in tools][1:] for tools in first] == [[], ["a"], ["a", "b"], ["b"]]
    again = [RESPONSES.decode(sent, {}, cache).tools for sent in shapes]
    assert all(a is b for a, b in zip(first, again, strict=True))


def test_same_bytes_are_cached_separately_per_api() -> None:
    cache, item = DecodeCache(), {"role": "assistant", "content": " ", "reasoning": "hm"}
    for _ in range(2):
        for codec, name in ((CHAT, "messages"), (MESSAGES, "messages"), (RESPONSES, "input")):
            sent = msgspec.json.encode({"model": "m", name: [item]})
            assert codec.decode(sent, {}, cache) == codec.decode(sent, {})


# Errors


FAULTS: list[tuple[Codec, str, Any, str]] = [
    (MESSAGES, "messages", {"role": "user", "content": 5}, "messages[2].content"),
    (MESSAGES, "messages", {"role": "user", "content": [5]}, "messages[2].content[0]"),
    (CHAT, "messages", {"role": "nobody"}, "messages[2].role"),
    (CHAT, "messages", {"role": "assistant", "tool_calls": [{}]}, "messages[2].tool_calls[0]"),
    (RESPONSES, "input", {"role": "user", "content": 5}, "input[2].content"),
    (RESPONSES, "input", {"type": "function_call"}, "input[2].name"),
]


@pytest.mark.parametrize(("codec", "name", "bad", "param"), FAULTS)
def test_error_after_cached_messages_has_its_index(
    codec: Codec, name: str, bad: Any, param: str
) -> None:
    cache, known = DecodeCache(), [{"role": "user", "content": text} for text in "ab"]
    codec.decode(msgspec.json.encode({"model": "m", name: known}), {}, cache)
    sent = msgspec.json.encode({"model": "m", name: [*known, bad]})
    for _ in range(2):
        fault = decode_result(codec.decode, sent, {}, cache)
        assert fault == decode_result(codec.decode, sent, {}, None)
        assert isinstance(fault, tuple)
        assert fault[2] == param


BROKEN = [b"\xff", b"1e999", b'"\\x"', b'{"a" 1}', b"NaN", b"01", b"[" * 200, b"[" * 50_000]


@pytest.mark.parametrize("piece", BROKEN)
@pytest.mark.parametrize("codec", [MESSAGES, CHAT], ids=lambda codec: codec.name)
def test_broken_json_is_reported_by_its_position_in_the_body(codec: Codec, piece: bytes) -> None:
    sent = b'{"model": "m", "messages": [{"role": "user", "content": ' + piece + b"}]}"
    fault = decode_result(codec.decode, sent, {}, DecodeCache())
    assert fault == decode_result(codec.decode, sent, {}, None)
    assert isinstance(fault, tuple)
    too_deep = piece.startswith(b"[[")
    expected = "must not be nested more" if too_deep else "is not valid JSON: "
    assert fault[1].startswith(f"The request body {expected}")


@pytest.mark.parametrize("half", [b"\\ud83d", b"\xed\xa0\xbd"], ids=["escaped", "raw"])
def test_lone_surrogate_is_repaired_and_cached(half: bytes) -> None:
    cache = DecodeCache()
    sent = b'{"model": "m", "messages": [{"role": "user", "content": "a ' + half + b' b"}]}'
    cold, warm = (MESSAGES.decode(sent, {}, cache) for _ in range(2))
    assert isinstance(block := cold.turns[0].blocks[0], TextBlock)
    assert re.fullmatch(r"a \?+ b", block.text)
    assert cold == MESSAGES.decode(sent, {})
    assert cold.turns[0] is warm.turns[0]


# The size limit


def flood(cache: DecodeCache, bytes: int, salt: str) -> None:
    """Decode requests of other clients, of about this many bytes."""
    for number in range(bytes // 10_000):
        history = [{"role": "user", "content": f"{salt} {number} " + "x" * 10_000}]
        MESSAGES.decode(history_body("messages", history), {}, cache)


def test_unused_entries_are_evicted_and_used_ones_stay() -> None:
    cache = DecodeCache(1_000_000)
    used, idle = (history_body("messages", [{"role": "user", "content": text}]) for text in "ab")
    first, once = (MESSAGES.decode(sent, {}, cache) for sent in (used, idle))
    for number in range(20):
        flood(cache, 50_000, str(number))
        assert MESSAGES.decode(used, {}, cache).turns[0] is first.turns[0]
    assert MESSAGES.decode(idle, {}, cache).turns[0] is not once.turns[0]


def test_cache_size_is_limited() -> None:
    cache = DecodeCache(1_000_000)
    flood(cache, 3_000_000, "x")
    held = [key for part in (cache._young, cache._old) for key in part]
    assert (
        0 < sum(len(piece) for key in held for piece in key if isinstance(piece, bytes)) < 500_000
    )


@pytest.mark.parametrize("size", [0, 1, 3_000])
def test_cache_too_small_for_a_message_stores_nothing(size: int) -> None:
    cache, sent = DecodeCache(size), history_body("messages", [{"role": "user", "content": TEXT}])
    assert MESSAGES.decode(sent, {}, cache) == MESSAGES.decode(sent, {}, cache)


# Arbitrary histories


ANY_ID = st.sampled_from([None, "", "call_1", "call_0_0"])
ANY_CALL = st.builds(lambda id: {"id": id, "function": {"name": "f"}}, ANY_ID)
ANY_MESSAGE = st.one_of(
    st.builds(
        lambda role, text: {"role": role, "content": text},
        st.sampled_from(["system", "developer", "user", "assistant"]),
        st.sampled_from(["", "a", "b"]),
    ),
    st.builds(
        lambda calls: {"role": "assistant", "tool_calls": calls}, st.lists(ANY_CALL, max_size=3)
    ),
    st.builds(lambda id: {"role": "tool", "tool_call_id": id, "content": "r"}, ANY_ID),
)
ANY_ITEM = st.sampled_from(
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "a"},
        {"type": "reasoning", "summary": [], "encrypted_content": "s"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
        {"type": "mcp_call", "name": "f", "output": "r"},
        {"type": "additional_tools", "tools": [{"name": "t"}]},
        {"type": "compaction_trigger"},
        {"type": "dream"},
    ]
)
SHARED = DecodeCache(100_000)


@settings(deadline=None)
@given(messages=st.lists(ANY_MESSAGE, min_size=1, max_size=8), items=st.lists(ANY_ITEM, max_size=8))
def test_any_history_decodes_the_same(messages: list[Any], items: list[Any]) -> None:
    for codec, fields in ((CHAT, {"messages": messages}), (RESPONSES, {"input": items})):
        sent = msgspec.json.encode({"model": "m", **fields})
        cold, warm = (codec.decode(sent, {}, SHARED) for _ in range(2))
        assert cold == warm == codec.decode(sent, {})
        assert cold.tools is warm.tools
