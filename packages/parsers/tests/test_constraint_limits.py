"""The work on a constraint is bounded: linear in the schema, and limited for each request."""

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from dovetail_model import DovetailError, InvalidRequest, OutputFormat, ToolChoice, Unsupported
from dovetail_parsers import GuidedGrammar, build_guided_grammar
from dovetail_parsers.constraint.limits import StepBudget

STRING = {"type": "string"}


def build(schema: dict[str, Any], syntax: Any = "gbnf") -> GuidedGrammar:
    return build_output(OutputFormat("json_schema", schema, field="the_field"), syntax)


def build_output(output: OutputFormat, syntax: Any = "gbnf") -> GuidedGrammar:
    found = build_guided_grammar(
        None, None, tools=(), output=output, in_reasoning=False, syntax=syntax
    )
    assert found is not None
    return found


def count_calls(work: Callable[[], object]) -> int:
    """Return how many functions are called and how often generators are resumed."""
    count = 0

    def on_event(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("syntax", ["gbnf", "ebnf", "lark"])
def test_the_work_on_a_tuple_is_linear(syntax: Any) -> None:
    def calls(count: int) -> int:
        return count_calls(
            lambda: build({"type": "array", "prefixItems": [STRING] * count}, syntax)
        )

    calls(10)  # fills caches
    assert calls(900) < 5 * calls(225)


def test_the_work_on_all_of_is_linear() -> None:
    def seconds(count: int) -> float:
        schema = {"allOf": [{"properties": {f"p{i}": STRING}} for i in range(count)]}

        def once() -> float:
            start = time.process_time()
            build(schema)
            return time.process_time() - start

        return min(once() for _ in range(3))

    assert seconds(4800) < 10 * seconds(1200)  # 16 times if it were quadratic


def test_the_search_for_left_recursion_is_linear() -> None:
    def calls(count: int) -> int:
        rules = [
            f"r{i} ::= " + "|".join([*(f"r{i - j}" for j in range(1, 9) if i >= j), '"a"'])
            for i in range(count)
        ]
        root = "|".join(f"r{i}" for i in range(count))
        output = OutputFormat("grammar", text="\n".join([f"root ::= {root}", *rules]), field="f")
        return count_calls(lambda: build_output(output))

    assert calls(400) < 6 * calls(100)


def test_schemas_that_repeat_each_other_are_read_once() -> None:
    names = [f"d{i}" for i in range(26)]
    defs: dict[str, Any] = {
        name: {"allOf": [{"$ref": f"#/$defs/{below}"}, {"$ref": f"#/$defs/{below}"}]}
        for name, below in pairwise(names)
    }
    defs["d25"] = {"type": "object", "properties": {"deep": STRING}}
    found = build({"$defs": defs, "$ref": "#/$defs/d0"})
    assert '\\"deep\\"' in found.text
    assert not found.notes


def test_a_schema_that_contains_itself_adds_nothing() -> None:
    own = {"$ref": "#/$defs/a"}
    schema = {"$defs": {"a": {"allOf": [own, own], "properties": {"x": STRING}}}, **own}
    small = count_calls(lambda: build({"properties": {"x": STRING}}))
    assert count_calls(lambda: build(schema)) < 2 * small
    assert not build(schema).notes


def test_every_schema_of_a_cycle_has_the_properties_of_all() -> None:
    a = {"allOf": [{"$ref": "#/$defs/b"}], "properties": {"x": STRING}}
    b = {"allOf": [{"$ref": "#/$defs/a"}], "properties": {"y": STRING}}
    for first, second in ("ab", "ba"):
        parts = [{"$ref": f"#/$defs/{first}"}, {"$ref": f"#/$defs/{second}"}]
        text = build({"$defs": {"a": a, "b": b}, "type": "array", "prefixItems": parts}).text
        assert text.count('"\\"x\\":') == text.count('"\\"y\\":') >= 2, text


@pytest.mark.parametrize("wrapper", [{}, {"type": "string"}])
def test_references_do_not_multiply_constants(wrapper: dict[str, Any]) -> None:
    items = [{"$ref": "#/$defs/e", **wrapper} for _ in range(200)]
    values = {"enum": [f"v{i}" for i in range(2000)]}
    found = build({"$defs": {"e": values}, "type": "array", "prefixItems": items})
    assert found.text.count("v1999") < 50
    assert any("too large" in note for note in found.notes)


def test_references_do_not_multiply_long_constants() -> None:
    items = [{"$ref": "#/$defs/e"} for _ in range(200)]
    schema = {"$defs": {"e": {"const": "x" * 50_000}}, "type": "array", "prefixItems": items}
    assert len(build(schema).text) < 2_000_000


TOO_LARGE = [
    ({"enum": list(range(20_001))}, "20,000 JSON values"),
    ({"type": "array", "prefixItems": [STRING] * 10_000}, "20,000 JSON values"),
    ({"anyOf": [{"properties": {f"p{i}": STRING}} for i in range(9000)]}, "20,000 JSON values"),
    ({"const": "x" * 1_100_000}, "1,048,576 characters"),
    ({"properties": {"x" * 1_100_000: STRING}}, "1,048,576 characters"),
]


@pytest.mark.parametrize(("schema", "limit"), TOO_LARGE)
def test_a_schema_beyond_the_limits_is_rejected(schema: dict[str, Any], limit: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build(schema)
    assert caught.value.param == "the_field"
    assert f"the_field: must not have more than {limit}" in str(caught.value)
    tools = [{"name": "big", "parameters": {"properties": {"a": schema}}}]
    with pytest.raises(InvalidRequest, match=f"tools: the schema of 'big' .* {limit}"):
        build_guided_grammar(
            "hermes", None, tools=tools, choice=ToolChoice("required"), in_reasoning=False
        )


def test_a_large_schema_without_a_constraint_is_accepted() -> None:
    tools = [{"name": "big", "parameters": TOO_LARGE[0][0]}]
    assert build_guided_grammar("hermes", None, tools=tools, in_reasoning=False) is None


def test_too_many_choices_are_rejected() -> None:
    choices = tuple(map(str, range(10_001)))
    with pytest.raises(InvalidRequest, match="the_field: must not have more than 10,000 texts"):
        build_output(OutputFormat("choice", choices=choices, field="the_field"))
    assert build_output(OutputFormat("choice", choices=choices[:-1], field="the_field"))


CHAIN = ["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(2000)), 'r2000 ::= "a"']
NESTED = [
    ("regex", "(" * 1900 + "a" + ")" * 1900),
    ("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
    ("grammar", "\n".join(CHAIN)),
]


@pytest.mark.parametrize(("kind", "text"), NESTED)
def test_deep_nesting_is_a_clear_error(kind: Any, text: str) -> None:
    with pytest.raises(Unsupported, match=r"^the_field: cannot be enforced: .* nested ") as caught:
        build_output(OutputFormat(kind, text=text, field="the_field"))
    assert isinstance(caught.value, DovetailError)
    assert "recursion" not in str(caught.value)


def test_steps_count_for_the_whole_request() -> None:
    whole = StepBudget(3)
    first, second = StepBudget(2, whole), StepBudget(2, whole)
    first.spend()
    assert not first.exhausted
    first.spend()
    assert (first.exhausted, second.exhausted) == (True, False)
    second.spend()
    assert (second.exhausted, whole.exhausted) == (True, True)
