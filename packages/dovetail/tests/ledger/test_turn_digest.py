"""Digests of turns: which differences they ignore, and that parts are separated."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.ledger.turn_digest import (
    DIGEST_BYTES,
    HistoryDigester,
    TurnDigestCache,
    canonicalize_arguments,
    compute_digest,
    digest_history,
    digest_turn,
    extend_chain,
)
from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)


class Two(NamedTuple):
    """Two turns to compare."""

    one: tuple[Block, ...]
    other: tuple[Block, ...]
    role: Role = "assistant"


def _call(arguments: str = "{}", name: str = "f", id: str = "a", **more: object) -> ToolCallBlock:
    return ToolCallBlock(id, name, arguments, **more)  # type: ignore[arg-type]


def _result(*texts: str, id: str = "a", is_error: bool = False) -> ToolResultBlock:
    return ToolResultBlock(id, tuple(map(TextBlock, texts)), is_error)


HI, YO = TextBlock("Hi."), TextBlock("Yo.")

EQUAL = {
    "thoughts": Two((ReasoningBlock("Hm."), HI), (HI,)),
    "the words of thoughts": Two((ReasoningBlock("Hm."), HI), (ReasoningBlock("Oh."), HI)),
    "seals": Two((ReasoningBlock("", seal="s"), HI), (ReasoningBlock("", seal="t"), HI)),
    "ids of calls": Two((_call(id="a"),), (_call(id="b"),)),
    "ids of results, without the calls": Two(
        (_result("x", id="a"),), (_result("x", id="b"),), "tool"
    ),
    "text and call in another order": Two((_call(), HI), (HI, _call())),
    "a text in two": Two((TextBlock("Hi"), TextBlock(".")), (HI,)),
    "white space around text": Two((TextBlock("\n Hi. \n"),), (HI,)),
    "a user's texts as lines of one": Two((HI, YO), (TextBlock("Hi.\nYo."),), "user"),
    "an empty text of a user": Two((TextBlock(""), HI), (HI,), "user"),
    "a result's texts as lines of one": Two((_result("x", "y"),), (_result("x\ny"),), "tool"),
    "the order of keys": Two((_call('{"a": 1, "b": 2}'),), (_call('{"b":2,"a":1}'),)),
    "the spelling of a number": Two((_call('{"a": 5000.0}'),), (_call('{"a": 5000}'),)),
    "the spelling of a character": Two((_call('{"a": "\\u00e9"}'),), (_call('{"a": "é"}'),)),
    "nothing for no arguments": Two((_call(""),), (_call("{}"),)),
    "the end of what is no JSON": Two((_call("{oops \n"),), (_call("{oops"),)),
    "the end of free text": Two((_call("x\n", custom=True),), (_call("x", custom=True),)),
    "what the model wrote": Two((TextBlock("Hi.", raw="Hi.<x>"),), (HI,)),
}

DISTINCT = {
    "text": Two((HI,), (YO,)),
    "white space inside": Two((TextBlock("a b"),), (TextBlock("a  b"),)),
    "names": Two((_call(name="f"),), (_call(name="g"),)),
    "namespaces": Two((_call(namespace="n"),), (_call(),)),
    "a namespace that is part of the name": Two(
        (_call(name="b", namespace="a"),), (_call(name="ab"),)
    ),
    "arguments": Two((_call('{"a": 1}'),), (_call('{"a": 2}'),)),
    "a number and its text": Two((_call('{"a": 1}'),), (_call('{"a": "1"}'),)),
    "one and true": Two((_call('{"a": 1}'),), (_call('{"a": true}'),)),
    "halves": Two((_call('{"a": 1.5}'),), (_call('{"a": 1}'),)),
    "white space in arguments": Two((_call('{"a": "x "}'),), (_call('{"a": "x"}'),)),
    "the number of calls": Two((_call(), _call()), (_call(),)),
    "the order of calls": Two((_call(name="f"), _call(name="g")), (_call(name="g"), _call())),
    "a call and its words": Two((_call(),), (TextBlock("f{}"),)),
    "the start of free text": Two((_call(" x", custom=True),), (_call("x", custom=True),)),
    "an object in free text": Two((_call('{"a": 1.0}', custom=True),), (_call('{"a": 1}'),)),
    "a call of a custom tool": Two((_call("{}", custom=True),), (_call("{}"),)),
    "a document in an assistant turn": Two((HI, DocumentBlock(text="x")), (HI,)),
    "white space before a user's text": Two((TextBlock("\nHi."),), (HI,), "user"),
    "white space after a user's text": Two((TextBlock("Hi. "),), (HI,), "user"),
    "white space around a system text": Two((TextBlock("Hi.\n"),), (HI,), "system"),
    "white space around a document": Two(
        (DocumentBlock(text="x\n"),), (DocumentBlock(text="x"),), "user"
    ),
    "an indented result": Two((_result("  x"),), (_result("x"),), "tool"),
    "white space after a result": Two((_result("x\n"),), (_result("x"),), "tool"),
    "a blank result": Two((_result(" "),), (_result(),), "tool"),
    "a user's text around an image": Two(
        (HI, ImageBlock(url="a"), YO), (HI, YO, ImageBlock(url="a")), "user"
    ),
    "a user's texts": Two((HI, YO), (YO, HI), "user"),
    "a result that failed": Two((_result("x"),), (_result("x", is_error=True),), "tool"),
    "results": Two((_result("x"),), (_result("y"),), "tool"),
    "results in another order": Two(
        (_result("x"), _result("y")), (_result("y"), _result("x")), "tool"
    ),
    "two results or one of two parts": Two(
        (_result("x"), _result("y")), (_result("x", "y"),), "tool"
    ),
    "a result and its text": Two((_result("x"),), (TextBlock("x"),), "user"),
    "an image": Two((ImageBlock("image/png", "AA"),), (ImageBlock("image/png", "AB"),), "user"),
    "an image by its place": Two((ImageBlock(url="a"),), (ImageBlock(data="a"),), "user"),
    "a document's title": Two(
        (DocumentBlock(title="a", text="x"),), (DocumentBlock(title="b", text="x"),), "user"
    ),
    "a document's text": Two((DocumentBlock(text="x"),), (DocumentBlock(text="y"),), "user"),
    "a document's type": Two(
        (DocumentBlock("text/plain", data="x"),), (DocumentBlock("text/html", data="x"),), "user"
    ),
    "an empty document": Two((DocumentBlock(),), (DocumentBlock(text=""),), "user"),
    "a document and its text": Two((DocumentBlock(text="x"),), (TextBlock("x"),), "user"),
}


@pytest.mark.parametrize("two", EQUAL.values(), ids=list(EQUAL))
def test_equal_digests(two: Two) -> None:
    assert (
        digest_turn(Turn(two.role, two.one)).digest == digest_turn(Turn(two.role, two.other)).digest
    )


@pytest.mark.parametrize("two", DISTINCT.values(), ids=list(DISTINCT))
def test_distinct_digests(two: Two) -> None:
    assert (
        digest_turn(Turn(two.role, two.one)).digest != digest_turn(Turn(two.role, two.other)).digest
    )


def test_roles_have_distinct_digests_except_system_and_developer() -> None:
    roles: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")
    seen = {role: digest_turn(Turn(role, (HI,))).digest for role in roles}
    assert seen["system"] == seen["developer"]
    assert len(set(seen.values())) == 4


def _tool_turn(*results: ToolResultBlock) -> Turn:
    return Turn("tool", results)


def _calls(*ids: str) -> Turn:
    return Turn("assistant", tuple(_call(id=id) for id in ids))


USER_TURN = Turn("user", (HI,))


def test_a_result_is_identified_by_the_position_of_its_call() -> None:
    histories = [
        [USER_TURN, _calls("a", "b"), _tool_turn(_result("x", id="a"))],
        [USER_TURN, _calls("a", "b"), _tool_turn(_result("x", id="b"))],
        [USER_TURN, _calls("a", "b"), _tool_turn(_result("x", id="unknown"))],
    ]
    digests = {digest_history(turns) for turns in histories}
    assert len(digests) == 3
    assert len({turns[:2] for turns in digests}) == 1


@pytest.mark.parametrize("renamed", ["new_1", "call-a", "CALLA"])
def test_ids_that_a_client_rewrites_do_not_change_the_digests(renamed: str) -> None:
    one = [
        USER_TURN,
        _calls("call_a", "b"),
        _tool_turn(_result("x", id="call_a"), _result("y", id="b")),
    ]
    other = [
        USER_TURN,
        _calls(renamed, "c"),
        _tool_turn(_result("x", id=renamed), _result("y", id="c")),
    ]
    assert digest_history(one) == digest_history(other)


def test_a_result_matches_its_call_by_letters_and_digits() -> None:
    """OpenClaw sends `call1` for `call_1` in results only."""
    one = [_calls("call_1", "call_2"), _tool_turn(_result("x", id="call_2"))]
    other = [_calls("call_1", "call_2"), _tool_turn(_result("x", id="call2"))]
    assert digest_history(one) == digest_history(other)


def test_results_without_a_call_do_not_depend_on_their_ids() -> None:
    assert digest_history([USER_TURN, _tool_turn(_result("x", id="a"))]) == digest_history(
        [USER_TURN, _tool_turn(_result("x", id="b"))]
    )


def test_digests_of_later_turns_need_the_calls_before_them() -> None:
    turns = [USER_TURN, _calls("a", "b"), _tool_turn(_result("x", id="b")), USER_TURN]
    turns += [_tool_turn(_result("y", id="a")), _calls("b"), _tool_turn(_result("z", id="b"))]
    whole = digest_history(turns)
    for at in range(len(turns) + 1):
        digester = HistoryDigester(TurnDigestCache(), turns[:at])
        assert tuple(digester.add(turn).digest for turn in turns[at:]) == whole[at:]


def test_handles() -> None:
    blocks = (
        ReasoningBlock("Hm.", seal="s1"),
        _call(id="a"),
        ReasoningBlock("No seal."),
        ReasoningBlock("", seal="s2"),
        _call(id="b"),
    )
    seen = digest_turn(Turn("assistant", blocks))
    assert (seen.seals, seen.call_ids) == (("s1", "s2"), ("a", "b"))
    assert len(seen.digest) == len(seen.copy_digest) == DIGEST_BYTES


@pytest.mark.parametrize(
    "other",
    [
        (ReasoningBlock("Oh.", seal="s"), _call(id="a")),
        (ReasoningBlock("Hm.", seal="t"), _call(id="a")),
        (ReasoningBlock("Hm.", seal="s"), _call(id="b")),
        (ReasoningBlock("s", seal=None), ReasoningBlock("Hm."), _call(id="a")),
        (_call(id="a"),),
    ],
)
def test_copy_digest_distinguishes_similar_copies(other: tuple[Block, ...]) -> None:
    one = digest_turn(Turn("assistant", (ReasoningBlock("Hm.", seal="s"), _call(id="a"))))
    assert digest_turn(Turn("assistant", other)).digest == one.digest
    assert digest_turn(Turn("assistant", other)).copy_digest != one.copy_digest


def test_deep_arguments_have_a_digest() -> None:
    """Valid JSON that needs two stack frames per level to traverse."""
    deep = '{"a":' * 600 + "1" + "}" * 600
    one = digest_turn(Turn("assistant", (_call(deep),)))
    assert one.digest != digest_turn(Turn("assistant", (_call(deep.replace("1", "2")),))).digest


def test_a_lone_surrogate_has_a_digest() -> None:
    assert (
        digest_turn(Turn("user", (TextBlock("\ud800"),))).digest
        != digest_turn(Turn("user", ())).digest
    )


PARTS = st.lists(st.text(max_size=5) | st.binary(max_size=5), max_size=5)


@given(one=PARTS, other=PARTS)
def test_different_parts_have_different_digests(
    one: list[str | bytes], other: list[str | bytes]
) -> None:
    as_bytes = [
        [p if isinstance(p, bytes) else p.encode("utf-8", "surrogatepass") for p in parts]
        for parts in (one, other)
    ]
    assert (compute_digest(*one) == compute_digest(*other)) == (as_bytes[0] == as_bytes[1])


def test_the_chain_depends_on_key_history_and_turn() -> None:
    start, one, two = bytes(DIGEST_BYTES), compute_digest("1"), compute_digest("2")
    known = [
        extend_chain(b"k", start, one),
        extend_chain(b"l", start, one),
        extend_chain(b"k", start, two),
        extend_chain(b"k", one, start),
        extend_chain(b"k", extend_chain(b"k", start, one), two),
        extend_chain(b"k", extend_chain(b"k", start, two), one),
    ]
    assert len(set(known)) == len(known)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "{}"),
        ('{"b": 1, "a": [2.0, {"d": 1, "c": 2}]}', '{"a":[2,{"c":2,"d":1}],"b":1}'),
        ('{"a": 1e300}', '{"a":1e+300}'),
        ('{"a": 0.5}', '{"a":0.5}'),
        ("[1.0]", "[1]"),
        ('"\\u00e9"', '"é"'),
        ("{cut ", "{cut"),
    ],
)
def test_arguments_are_canonicalized(given: str, expected: str) -> None:
    assert canonicalize_arguments(given) == expected


def test_digests_are_cached_by_identity_within_limits() -> None:
    digests = TurnDigestCache(max_turns=2)
    turns = [Turn("user", (TextBlock(str(n)),)) for n in range(5)]
    first = digests.get(turns[0])
    assert digests.get(turns[0]) is first
    assert digests.get(Turn("user", (TextBlock("0"),))) == first
    for turn in turns:
        assert digests.get(turn) == digest_turn(turn)
    assert digests.get(turns[0]) is not first
