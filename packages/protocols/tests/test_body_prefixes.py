"""The part of a body that a session has sent before is not decoded again; the result is equal."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from golden_transcripts import CODECS
from history_bodies import agent_turn, history_body
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from repeated_decode_plugin import decode_result

from dovetail_protocols import MESSAGES, Codec, DecodeCache
from dovetail_protocols.body_prefixes import _ITEM_OVERHEAD_BYTES, BodyPrefixCache, HistoryKey

KEY = HistoryKey("messages", "k")
ITEMS = [{"role": "user", "content": text} for text in ("a", "b,]", 'c\\"}', "d" * 40, "é")]


def written(items: list[Any], between: str = ",", **more: Any) -> bytes:
    """Return a body with these separators, with its history in the middle."""
    history = between.join(json.dumps(item, ensure_ascii=False) for item in items)
    tail = "".join(f',"{name}":{json.dumps(value)}' for name, value in more.items())
    return f'{{"model":"m","messages":[{history}]{tail}}}'.encode()


def read(known: BodyPrefixCache, sent: bytes, line: HistoryKey = KEY) -> tuple[list[Any], int]:
    """Return all items of a body, and how many of them were skipped."""
    rest = known.match(line, sent)
    if rest is None:
        raws = json.loads(sent)[line.field]
        items = [Raw(_bytes_of(sent, raw)) for raw in raws]
        known.put(line, sent, None, items, raws)
        return raws, 0
    new = json.loads(bytes(rest.fields[line.field]))
    found = [*rest.known_decoded, *new]
    known.put(line, sent, rest, [Raw(_bytes_of(sent, raw)) for raw in new], found)
    return found, rest.known_items


def _bytes_of(sent: bytes, item: Any) -> bytes:
    return json.dumps(item, ensure_ascii=False).encode()


@pytest.mark.parametrize("between", [",", ", ", " ,\n"])
def test_items_sent_before_are_skipped(between: str) -> None:
    known = BodyPrefixCache(10_000, min_body_bytes=0)
    for end in range(1, len(ITEMS) + 1):
        sent = written(ITEMS[:end], between, turn=end)
        assert read(known, sent) == (ITEMS[:end], end - 1)
    assert read(known, sent) == (ITEMS, len(ITEMS) - 1), "one item is always decoded"
    assert read(known, written(ITEMS[:2], between)) == (ITEMS[:2], 1), "rewound"
    changed = [*ITEMS[:3], {"role": "user"}, ITEMS[4]]
    assert read(known, written(changed, between)) == (changed, 3), (
        "the longer history is still cached"
    )


def test_sessions_have_several_separate_histories() -> None:
    known, other = BodyPrefixCache(40_000, min_body_bytes=0), HistoryKey("messages", "k", "other")
    agent = [{"role": "user", "content": "sub"}, *ITEMS]
    for items, left_out in ((ITEMS[:3], 0), (agent[:3], 0), (ITEMS, 3), (agent, 3)):
        assert read(known, written(items))[1] == left_out
    assert read(known, written(ITEMS), other)[1] == 0
    assert len(known._young[KEY]) == 2


def test_size_is_limited() -> None:
    known = BodyPrefixCache(12_000, min_body_bytes=0)
    for number in range(200):  # four sessions, whose histories fork all the time
        line = HistoryKey("messages", "k", str(number // 5 % 4))
        read(known, written([{"n": number, "text": "x" * 300}]), line)
        overhead = _ITEM_OVERHEAD_BYTES
        lines = [one for generation in (known._young, known._old) for one in generation.values()]
        assert sum(len(one.body) + overhead for group in lines for one in group) <= 12_000
    assert read(known, written([{"n": 199, "text": "x" * 300}, {}]), line)[1] == 1
    read(known, written([{"text": "x" * 9_000}]), other := HistoryKey("messages", "k", "large"))
    assert not known._prefixes(other)


def odd_bodies() -> Iterator[tuple[str, bytes]]:
    items = json.dumps(ITEMS[:2], ensure_ascii=False)[:-1]
    yield "a comma too many", f'{{"model":"m","messages":{items},]}}'.encode()
    yield "no comma", f'{{"model":"m","messages":{items} {{}}]}}'.encode()
    yield "cut", f'{{"model":"m","messages":{items},{{"role":"us'.encode()
    more = f'{items},{{"role":"user","content":"z"}}]'
    yield "another history behind it", f'{{"model":"m","messages":{more},"messages":[]}}'.encode()
    same = '[{"role":"user","content":"z"}]'
    yield "the same end twice", f'{{"model":"m","messages":{more},"messages":{same}}}'.encode()
    escaped = f'{{"model":"m","messages":{more},"\\u006dessages":{same}}}'
    yield "spelled otherwise", escaped.encode()
    yield "a number", f'{{"model":"m","messages":{items},12]}}'.encode()
    yield (
        "half an emoji",
        f'{{"model":"m","messages":{items},{{"role":"user","content":"\\ud83d"}}]}}'.encode(),
    )
    tails = {"bytes": b'"\xff"', "number": b"1e999", "digits": b"9" * 5_000}
    for name, tail in tails.items():
        end = b',"user":%b,"temperature":%b,"seed":%b}' % (tail, tail, tail)
        yield f"odd {name} behind it", f'{{"model":"m","messages":{more}'.encode() + end
    yield "no object", b"[1]"
    yield "a history that is none", b'{"model":"m","messages":{"a":[{}]}}'


@pytest.mark.parametrize(("sent", "api"), [
    pytest.param(sent, api, id=f"{api}: {name}") for name, sent in odd_bodies()
    for api in ("messages", "chat")
])  # fmt: skip
def test_odd_bodies_decode_as_without_a_cache(sent: bytes, api: str) -> None:
    codec, memory = CODECS[api], DecodeCache(min_body_bytes=0)
    before = f'{{"model":"m","messages":{json.dumps(ITEMS[:3], ensure_ascii=False)}}}'.encode()
    codec.decode(before, {}, memory)
    for _ in range(2):
        assert decode_result(codec.decode, sent, {}, memory) == decode_result(
            codec.decode, sent, {}, None
        )


@pytest.mark.parametrize("api", CODECS)
@settings(max_examples=60)
@given(data=st.data())
def test_any_session_decodes_as_without_a_cache(api: str, data: st.DataObject) -> None:
    """Histories grow, are truncated, change in the middle and use other white space."""
    codec: Codec = CODECS[api]
    memory, history = DecodeCache(300_000, min_body_bytes=0), [{"role": "user", "content": "Go."}]
    for number in range(8):
        match data.draw(st.sampled_from(["grow", "grow", "grow", "cut", "change", "odd"])):
            case "grow":
                history = [*history, *agent_turn(api, number)]
            case "cut":
                history = history[: data.draw(st.integers(1, len(history)))]
            case "change":
                at = data.draw(st.integers(0, len(history) - 1))
                history = [*history[:at], {"role": "user", "content": f"{number}"}]
            case "odd":
                history = [*history, {"role": "user", "content": data.draw(st.text(max_size=5))}]
        sent = history_body(api, history, metadata={"user_id": data.draw(st.text(max_size=3))})
        if data.draw(st.booleans()):
            sent = json.dumps(
                json.loads(sent), indent=data.draw(st.sampled_from([None, 1]))
            ).encode()
        if data.draw(st.integers(0, 9)) == 0:
            sent = sent[: data.draw(st.integers(0, len(sent)))]
        headers = data.draw(st.sampled_from([{}, {"x-session-id": "s"}]))
        assert decode_result(codec.decode, sent, headers, memory) == decode_result(
            codec.decode, sent, headers, None
        )


def test_error_path_has_the_index_in_the_full_history() -> None:
    memory = DecodeCache(min_body_bytes=0)
    MESSAGES.decode(written(ITEMS[:3]), {}, memory)
    sent = written([*ITEMS[:3], {"role": "nobody"}])
    assert decode_result(MESSAGES.decode, sent, {}, memory) == decode_result(
        MESSAGES.decode, sent, {}, None
    )
    assert "messages[3]" in str(decode_result(MESSAGES.decode, sent, {}, memory))
