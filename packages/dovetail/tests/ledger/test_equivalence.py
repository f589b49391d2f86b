"""Equivalence of turns: which changes of a replayed turn are harmless, and which are edits."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_entries import turn as entry

from dovetail.ledger.entry import EntrySpan, LedgerEntry
from dovetail.ledger.equivalence import has_same_reasoning, is_same_arguments, is_same_turn
from dovetail_model import Block, ReasoningBlock, TextBlock, ToolCallBlock, ToolSpec, Turn

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "string"},
        "timeout": {"type": "number", "default": 30},
        "shell": {"type": "string", "default": "bash"},
        "background": {"type": "boolean", "default": False},
        "force": {"type": "boolean", "default": True},
    },
}
DEEP = '{"a":' * 600 + "1" + "}" * 600

#: The arguments that the model generated, and the copy of the client.
FORM = {
    "the same": ('{"command": "ls"}', '{"command": "ls"}'),
    "white space between tokens": ('{ "command" :\n "ls" }', '{"command":"ls"}'),
    "keys in another order": ('{"command": "ls", "n": 1}', '{"n": 1, "command": "ls"}'),
    "keys of an inner object": ('{"o": {"a": 1, "b": 2}}', '{"o": {"b": 2, "a": 1}}'),
    "a whole number as one": ('{"timeout": 5000.0}', '{"timeout": 5000}'),
    "a number in other digits": ('{"timeout": 1e3}', '{"timeout": 1000}'),
    "inside a list": ('{"lines": [1.0, 2.0]}', '{"lines": [1, 2]}'),
    "a default of the schema": ('{"command": "ls"}', '{"command": "ls", "timeout": 30}'),
    "another default": ('{"command": "ls"}', '{"command": "ls", "shell": "bash"}'),
    "a default that is true": ('{"command": "ls"}', '{"command": "ls", "force": true}'),
    "false where nothing was": ('{"command": "ls"}', '{"command": "ls", "replace_all": false}'),
    "null where nothing was": ('{"command": "ls"}', '{"command": "ls", "extra": null}'),
    "an empty list where nothing was": ('{"command": "ls"}', '{"command": "ls", "extra": []}'),
    "null left out": ('{"command": "ls", "extra": null}', '{"command": "ls"}'),
    "false inside an object": ('{"o": {"a": 1}}', '{"o": {"a": 1, "b": false}}'),
    "white space at the end": ('{"new": "x  \\n"}', '{"new": "x"}'),
    "white space at the ends of lines": ('{"new": "x  \\ny\\t\\nz"}', '{"new": "x\\ny\\nz"}'),
    "a character spelled out": ('{"new": "caf\\u00e9"}', '{"new": "café"}'),
    "an escape that need not be": ('{"path": "a\\/b"}', '{"path": "a/b"}'),
    "a pair of surrogates": ('{"new": "\\ud83e\\udd9c"}', '{"new": "🦜"}'),
    "a big number without its last digits": (
        '{"id": 12345678901234567890}',
        '{"id": 12345678901234567000}',
    ),
    "into the folder first": ('{"command": "cd /repo && ls -la"}', '{"command": "ls -la"}'),
    "into a quoted folder": ('{"command": "cd \\"/my repo\\" && ls"}', '{"command": "ls"}'),
    "into a folder in single quotes": ('{"command": "cd \'/a b\' &&  ls"}', '{"command": "ls"}'),
    "nothing for no arguments": ("", "{}"),
    "no arguments for nothing": ("{}", ""),
    "text that is no JSON": ("{oops \n", "{oops"),
    "no object": ("[1.0, 2]", "[1, 2]"),
}

EDITS = {
    "another word": ('{"command": "ls"}', '{"command": "rm"}'),
    "another key": ('{"command": "ls"}', '{"commands": "ls"}'),
    "a key more": ('{"command": "ls"}', '{"command": "ls", "extra": 1}'),
    "true where nothing was": ('{"command": "ls"}', '{"command": "ls", "background": true}'),
    "zero where nothing was": ('{"command": "ls"}', '{"command": "ls", "retries": 0}'),
    "not the default": ('{"command": "ls"}', '{"command": "ls", "timeout": 31}'),
    "false against the default": ('{"command": "ls"}', '{"command": "ls", "force": false}'),
    "empty against the default": ('{"command": "ls"}', '{"command": "ls", "shell": ""}'),
    "a key less": ('{"command": "ls", "timeout": 5}', '{"command": "ls"}'),
    "an empty text less": ('{"command": "ls", "path": ""}', '{"command": "ls"}'),
    "white space in front": ('{"new": "x"}', '{"new": "  x"}'),
    "an indented line": ('{"new": "a\\nb"}', '{"new": "a\\n  b"}'),
    "a line more": ('{"new": "a\\nb"}', '{"new": "a\\n\\nb"}'),
    "another number": ('{"timeout": 5000}', '{"timeout": 5001}'),
    "a number as text": ('{"timeout": 5}', '{"timeout": "5"}'),
    "one for true": ('{"background": true}', '{"background": 1}'),
    "zero for false": ('{"background": false}', '{"background": 0}'),
    "null for a text": ('{"new": ""}', '{"new": null}'),
    "a list in another order": ('{"lines": [1, 2]}', '{"lines": [2, 1]}'),
    "a shorter list": ('{"lines": [1, 2]}', '{"lines": [1]}'),
    "a longer list": ('{"lines": [1]}', '{"lines": [1, 2]}'),
    "a folder that the model did not enter": ('{"command": "ls"}', '{"command": "cd /x && ls"}'),
    "another folder": ('{"command": "cd /a && ls"}', '{"command": "cd /b && ls"}'),
    "a folder in what is no command": ('{"new": "cd /repo && ls"}', '{"new": "ls"}'),
    "a list for an object": ('{"a": 1}', "[1]"),
    "text that is no JSON": ("{oops", "{ooops"),
    "a deep value": (DEEP, DEEP.replace("1", "2")),
}


@pytest.mark.parametrize(("wrote", "shown"), FORM.values(), ids=list(FORM))
def test_rewritten_arguments_are_equivalent(wrote: str, shown: str) -> None:
    assert is_same_arguments(wrote, shown, SCHEMA)
    assert is_same_turn(_called(wrote), _calls(shown), [ToolSpec("run", parameters=SCHEMA)])


@pytest.mark.parametrize(("wrote", "shown"), EDITS.values(), ids=list(EDITS))
def test_edited_arguments_are_not_equivalent(wrote: str, shown: str) -> None:
    assert not is_same_arguments(wrote, shown, SCHEMA)
    assert not is_same_turn(_called(wrote), _calls(shown), [ToolSpec("run", parameters=SCHEMA)])


def test_deeply_nested_arguments_are_compared_as_text() -> None:
    assert is_same_arguments(DEEP, DEEP + "\n", {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(value=st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_any_spelling_of_the_same_value_is_equivalent(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert is_same_arguments(
        json.dumps(value), json.dumps(turned, ensure_ascii=False, indent=1), {}
    )


@given(value=st.dictionaries(st.text(max_size=4), JSON, max_size=4), key=st.text(max_size=4))
def test_a_new_value_is_an_edit(value: dict[str, Any], key: str) -> None:
    assert not is_same_arguments(json.dumps(value), json.dumps({**value, key: "never said"}), {})


def test_the_schema_of_a_tool_is_found_by_name_and_namespace() -> None:
    shown = Turn("assistant", (ToolCallBlock("c1", "run", '{"timeout": 30}', namespace="mcp"),))
    named = [
        ToolSpec("run", parameters={}),
        ToolSpec("run", namespace="mcp", parameters=SCHEMA),
    ]
    spans = (EntrySpan("call", "", "{}", name="run", id="c1", namespace="mcp"),)
    assert is_same_turn(entry("e", spans=spans), shown, named)
    assert not is_same_turn(entry("e", spans=spans), shown, named[:1])
    assert not is_same_turn(entry("e", spans=(_call("{}"),)), shown, named)


SPANS = (
    EntrySpan("reasoning", "", "First thought."),
    EntrySpan("text", "", "I will look. "),
    EntrySpan("call", "", '{"command": "ls"}', name="run", id="c1"),
    EntrySpan("reasoning", "", "Second thought.\n"),
    EntrySpan("text", "", "And again.\n"),
    EntrySpan("call", "", '{"command": "pwd"}', name="run", id="c2"),
)
LOOK, AGAIN = TextBlock("I will look. "), TextBlock("And again.\n")
LS = ToolCallBlock("c1", "run", '{"command": "ls"}')
PWD = ToolCallBlock("c2", "run", '{"command": "pwd"}')
ONE, TWO = ReasoningBlock("First thought."), ReasoningBlock("Second thought.\n")

COPIES: dict[str, tuple[tuple[Block, ...], bool]] = {
    "as it was": ((ONE, LOOK, LS, TWO, AGAIN, PWD), True),
    "calls moved behind the text": ((ONE, LOOK, TWO, AGAIN, LS, PWD), True),
    "without thoughts": ((LOOK, LS, AGAIN, PWD), True),
    "without the first thought": ((LOOK, LS, TWO, AGAIN, PWD), True),
    "without the second thought": ((ONE, LOOK, LS, AGAIN, PWD), True),
    "thoughts without their words": (
        (ReasoningBlock("", seal="s"), LOOK, LS, ReasoningBlock(""), AGAIN, PWD),
        True,
    ),
    "thoughts in one": (
        (ReasoningBlock("First thought.Second thought."), LOOK, LS, AGAIN, PWD),
        True,
    ),
    "thoughts in one, by lines": (
        (ReasoningBlock("First thought.\nSecond thought."), LOOK, LS, AGAIN, PWD),
        True,
    ),
    "texts in one": ((ONE, TextBlock("I will look. And again."), LS, TWO, PWD), True),
    "other ids": (
        (ONE, LOOK, ToolCallBlock("x", LS.name, LS.arguments), TWO, AGAIN, PWD),
        True,
    ),
    "a thought edited": ((ReasoningBlock("Other."), LOOK, LS, TWO, AGAIN, PWD), False),
    "a thought more": ((ONE, ReasoningBlock("More."), LOOK, LS, TWO, AGAIN, PWD), False),
    "a thought twice": ((ONE, ONE, LOOK, LS, TWO, AGAIN, PWD), False),
    "thoughts in another order": ((TWO, LOOK, LS, ONE, AGAIN, PWD), False),
    "text edited": ((ONE, TextBlock("I won't look."), LS, TWO, AGAIN, PWD), False),
    "text gone": ((ONE, LS, TWO, AGAIN, PWD), False),
    "text more": ((ONE, LOOK, LS, TWO, AGAIN, PWD, TextBlock("More.")), False),
    "a call gone": ((ONE, LOOK, LS, TWO, AGAIN), False),
    "a call more": ((ONE, LOOK, LS, TWO, AGAIN, PWD, PWD), False),
    "calls in another order": ((ONE, LOOK, PWD, TWO, AGAIN, LS), False),
    "a call by another name": (
        (ONE, LOOK, ToolCallBlock("c1", "ran", LS.arguments), TWO, AGAIN, PWD),
        False,
    ),
}


@pytest.mark.parametrize(("blocks", "same"), COPIES.values(), ids=list(COPIES))
def test_copies_of_a_turn(blocks: tuple[Block, ...], same: bool) -> None:
    assert is_same_turn(entry("e", spans=SPANS), Turn("assistant", blocks)) is same


def test_free_text_is_compared_without_parsing() -> None:
    patch = '*** Begin Patch\n{"a": 1.0}\n'
    spans = (EntrySpan("call", "", patch, name="patch", id="c1", custom=True),)
    for shown, same in ((patch, True), (patch.rstrip(), True), (patch.replace("1.0", "1"), False)):
        copy = Turn("assistant", (ToolCallBlock("c1", "patch", shown, custom=True),))
        assert is_same_turn(entry("e", spans=spans), copy) is same


def test_truncated_call_equals_what_its_client_parsed() -> None:
    """Claude Code sends `{}` for incomplete arguments."""
    spans = (EntrySpan("call", "", '{"command": "l', name="run", id="c1", complete=False),)
    assert is_same_turn(entry("e", spans=spans), _calls("{}"))


def test_reasoning_only() -> None:
    assert has_same_reasoning((), Turn("assistant", (TextBlock("x"),)))
    assert not has_same_reasoning((), Turn("assistant", (ONE,)))


def _call(arguments: str) -> EntrySpan:
    return EntrySpan("call", "", arguments, name="run", id="c1")


def _called(arguments: str) -> LedgerEntry:
    return entry("e", spans=(_call(arguments),))


def _calls(arguments: str) -> Turn:
    return Turn("assistant", (ToolCallBlock("c1", "run", arguments),))
