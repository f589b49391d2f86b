"""Constraints on numbers and strings that a grammar enforces, notes on those that it does not, and
the grammars of custom tools.
"""

import json
from typing import Any

import pytest
from gbnf_reader import Gbnf, read
from grammar_matchers import READERS, accepts
from guided_requests import BY_NAME
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import encode, vocabulary_of

from dovetail_model import OutputFormat, ToolCallBlock, ToolChoice, ToolSpec
from dovetail_parsers import GuidedGrammar, build_guided_grammar, write_message

PATCH_GRAMMAR = """
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

// one file each
hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
PATCH = """*** Begin Patch
*** Add File: a "b".py
+x = "<é\\n>"
+
*** Update File: <b>.html
@@ <div>
-<p>
+</p>
*** End Patch
"""
BAD_PATCHES = (
    "x = 1\n",
    PATCH.replace("*** Begin Patch\n", ""),
    PATCH.replace("+\n", "y\n"),
    PATCH.replace('Add File: a "b".py', "Add File: "),
)


def output(schema: Any, syntax: Any = "gbnf") -> GuidedGrammar:
    made = build_guided_grammar(
        None,
        None,
        tools=[],
        output=OutputFormat("json_schema", schema=schema),
        in_reasoning=False,
        syntax=syntax,
    )
    assert made is not None
    return made


def rules_of(schema: Any) -> Gbnf:
    return read(output(schema).text)


BOUND = st.one_of(st.none(), st.integers(-1500, 1500))


@given(BOUND, BOUND, st.lists(st.integers(-2000, 2000), min_size=5))
def test_integers_between_bounds(low: int | None, high: int | None, values: list[int]) -> None:
    bounds = {k: v for k, v in (("minimum", low), ("maximum", high)) if v is not None}
    if low is not None and high is not None and low > high:
        return
    rules = rules_of({"type": "integer", **bounds})
    near = [v + d for v in (low, high) if v is not None for d in (-1, 0, 1)]
    for value in (*values, *near, 0):
        fits = (low is None or value >= low) and (high is None or value <= high)
        assert rules.accepts(str(value)) == fits, value


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "exclusiveMinimum": 0}, ["1", "70"], ["0", "-1"]),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, ["1"], ["0"]),
        ({"type": "integer", "minimum": 0.5, "maximum": 9.5}, ["1", "9"], ["0", "10"]),
        ({"type": "integer", "minimum": 5, "maximum": 3}, ["7"], ["x"]),
        ({"type": "integer", "minimum": 10**30}, ["7"], ["x"]),
        ({"type": "number", "minimum": 0}, ["0.5", "0"], ["-1", "-0.5"]),
        ({"type": "string", "minLength": 1}, ['"a"', '"\\n\\""'], ['""']),
    ],
    ids=json.dumps,
)
def test_bounds(schema: Any, good: list[str], bad: list[str]) -> None:
    rules = rules_of(schema)
    assert all(map(rules.accepts, good))
    assert not any(map(rules.accepts, bad))


@pytest.mark.parametrize(
    ("schema", "notes"),
    [
        ({"type": "string"}, ()),
        ({"type": "string", "minLength": 1}, ()),
        ({"type": "integer", "minimum": 1, "maximum": 7}, ()),
        ({"type": "number", "minimum": 0}, ()),
        ({"type": "string", "pattern": "^[a-z]+$"}, ()),
        ({"type": "string", "maxLength": 9}, ("maxLength is not enforced",)),
        ({"type": "string", "minLength": 2}, ("minLength is not enforced",)),
        ({"type": "string", "pattern": "(?=a)"}, ("pattern is not enforced",)),
        ({"type": "integer", "multipleOf": 2}, ("multipleOf is not enforced",)),
        ({"type": "number", "maximum": 1}, ("minimum and maximum of numbers are not enforced",)),
        ({"type": "array", "uniqueItems": True}, ("uniqueItems is not enforced",)),
        ({"type": "object", "patternProperties": {}}, ("patternProperties is not enforced",)),
        (
            {"items": {"type": "string", "maxLength": 3}, "not": {}},
            ("not is not enforced", "maxLength is not enforced"),
        ),
    ],
    ids=json.dumps,
)
def test_unenforced_constraints_are_noted(schema: Any, notes: tuple[str, ...]) -> None:
    assert output(schema).notes == notes


def test_constraints_of_raw_strings_are_noted() -> None:
    text = {"type": "string", "pattern": "^a$", "maxLength": 3}
    tool = ToolSpec("t", parameters={"type": "object", "properties": {"x": text}})
    required = ToolChoice("required")
    raw = build_guided_grammar(
        "qwen3_coder", None, tools=[tool], choice=required, in_reasoning=False
    )
    assert raw is not None
    assert raw.notes == ("pattern is not enforced", "maxLength is not enforced")


def patch_guide(name: str, definition: str, **more: Any) -> GuidedGrammar:
    family = BY_NAME[name]
    made = build_guided_grammar(
        family.tool_parser,
        family.reasoning_parser,
        tools=[ToolSpec("apply_patch", custom=True, grammar=definition)],
        choice=ToolChoice("required"),
        in_reasoning=False,
        **more,
    )
    assert made is not None
    return made


def patch_call(name: str, patch: str) -> str:
    return write_message([ToolCallBlock("", "apply_patch", patch, custom=True)], BY_NAME[name])


@pytest.mark.parametrize("name", BY_NAME)
def test_grammar_of_a_custom_tool_is_enforced(name: str) -> None:
    made = patch_guide(name, PATCH_GRAMMAR)
    assert made.notes == ()
    rules = read(made.text)
    assert rules.accepts(patch_call(name, PATCH))
    for patch in BAD_PATCHES:
        assert not rules.accepts(patch_call(name, patch)), patch


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "gemma4", "kimi_k3", "minimax_m3"])
@pytest.mark.parametrize("syntax", READERS)
def test_grammar_of_a_custom_tool_in_other_notations(syntax: Any, name: str) -> None:
    words = vocabulary_of(name)
    made = patch_guide(name, PATCH_GRAMMAR, syntax=syntax, tokens=words.controls)
    assert accepts(syntax, made.text, words, encode(patch_call(name, PATCH), words))
    for patch in BAD_PATCHES:
        ids = encode(patch_call(name, patch), words)
        assert not accepts(syntax, made.text, words, ids), patch


@pytest.mark.parametrize(
    "definition",
    [
        'start: "a"i',
        "start: /a/s",
        "start: other",
        'start: "a"\n%ignore " "',
        'start: start "a" | "b"',
        "start: /(?=a)b/",
        "nonsense",
        'start: "a" ("b"',
        "%import common.FLOAT\nstart: FLOAT",
        "start: (/a*/)*",
    ],
)
def test_unsupported_grammar_is_noted_and_not_enforced(definition: str) -> None:
    made = patch_guide("qwen3_coder", definition)
    assert made.notes == ("the grammar of a custom tool is not enforced",)
    assert read(made.text).accepts(patch_call("qwen3_coder", "anything"))


@pytest.mark.parametrize(
    ("definition", "good", "bad"),
    [
        ("start: /[a-c]{2}\\d+/", ["ab12"], ["ab", "a1"]),
        ('start: "a" [B] ("c" | "d")*\nB: /x|y/', ["a", "axcd"], ["ab", "axy"]),
        (
            "start: line+\nline: /[^x\\n]*/ NEWLINE\n%import common.NEWLINE",
            ["a\n", "\n\n"],
            ["x\n"],
        ),
        ('?start: "(" start ")" | "z"', ["z", "((z))"], ["((z)"]),
    ],
)
@pytest.mark.parametrize("name", ["glm47", "hermes"])
def test_supported_subset_of_lark(
    name: str, definition: str, good: list[str], bad: list[str]
) -> None:
    made = patch_guide(name, definition)
    assert made.notes == ()
    rules = read(made.text)
    for text in good:
        assert rules.accepts(patch_call(name, text)), text
    for text in bad:
        assert not rules.accepts(patch_call(name, text)), text
