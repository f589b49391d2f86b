"""Output formats other than JSON: regular expressions, choices, grammars of clients."""

import re
from typing import Any

import pytest

from dovetail_model import InvalidRequest, OutputFormat, ToolChoice, Unsupported
from dovetail_parsers import build_guided_grammar


def grammar(kind: Any, text: str = "", **more: Any) -> str:
    """Return the grammar of a request with this format, for a model without reasoning."""
    output = OutputFormat(kind, text=text, field="the_field", **more)
    found = build_guided_grammar(None, None, tools=(), output=output, in_reasoning=False)
    assert found is not None
    return found.text


def test_choice() -> None:
    assert grammar("choice", choices=("yes", 'n"o')) == 'root ::= "yes" | "n\\"o"\n'


@pytest.mark.parametrize("pattern", ["[0-9]{2}(a|b)+", "^[0-9]{2}(a|b)+$"])
def test_regular_expression(pattern: str) -> None:
    assert grammar("regex", pattern) == 'root ::= [0-9]{2} ("a" | "b")+\n'


GRAMMARS = [
    ('root ::= "yes" | "no"', '"yes" | "no"'),
    ("root ::= [a-z]+ # comment\n", "[a-z]+"),
    ('root ::= "a" b\nb ::= [^"\\\\\\n]{2,3} "\\x41\\u00e9"?', None),
    ('root ::= ("a"\n  | b)*\nb ::= "(" root ")"', None),
    ('root ::= item ("," item)*\nitem ::= [-+]? [0-9a-f]{1,4}', None),
    ('start: "yes" | WORD\nWORD: /[a-z]+/', None),
]


@pytest.mark.parametrize(("given", "rule"), GRAMMARS)
def test_grammars_of_clients(given: str, rule: str | None) -> None:
    text = grammar("grammar", given)
    assert text.startswith("root ::= ")
    if rule is not None:
        assert rule in text
    # What was written can be read again.
    assert _bodies(text) <= _bodies(grammar("grammar", text))


def _bodies(text: str) -> set[str]:
    """Return the right sides of all rules, without the numbers in names."""
    rules = re.sub(r"rule-[0-9]+", "rule", text).splitlines()
    return {rule.partition(" ::= ")[2] for rule in rules}


UNSUPPORTED = [
    ("regex", "(?=a)b"),
    ("regex", "a{1,5000}"),
    ("regex", "(a"),
    ("regex", "a" * 5000),
    ("grammar", "nonsense"),
    ("grammar", 'other ::= "a"'),
    ("grammar", "root ::= missing"),
    ("grammar", 'root ::= root "a" | "a"'),
    ("grammar", 'root ::= ("a"'),
    ("grammar", 'root ::= "a")'),
    ("grammar", "root ::= [z-a]"),
    ("grammar", "root ::= []"),
    ("grammar", 'root ::= ("a"*)*'),
    ("grammar", 'root ::= "a"{3,2}'),
    ("grammar", 'root ::= "a"{1,5000}'),
    ("grammar", "root ::= <[5]>"),
    ("grammar", 'root ::= "\\U00110000"'),
    ("grammar", 'root ::= "a"\nroot ::= "b"'),
    ("grammar", '"a" root ::= "b"'),
    ("grammar", "::= a"),
    ("grammar", "root ::= " + '"a" ' * 20_000),
    ("grammar", "start: " + '"a" ' * 20_000),
]


@pytest.mark.parametrize(("kind", "text"), UNSUPPORTED, ids=lambda one: one[:30])
def test_what_cannot_be_enforced_is_an_error_with_the_field(kind: str, text: str) -> None:
    with pytest.raises(Unsupported, match=r"^the_field: cannot be enforced") as caught:
        grammar(kind, text)
    assert caught.value.param == "the_field"


def test_empty_choices_are_an_error() -> None:
    for choices in ((), ("a", "")):
        with pytest.raises(InvalidRequest, match="the_field"):
            grammar("choice", choices=choices)


def test_reasoning_comes_before_the_text_and_calls_are_alternatives() -> None:
    output = OutputFormat("choice", choices=("yes",))
    tool = {"name": "f", "parameters": {"type": "object"}}
    found = build_guided_grammar(
        "hermes",
        "qwen3",
        tools=[tool],
        choice=ToolChoice(),
        output=output,
        in_reasoning=True,
        syntax="lark",
    )
    assert found is not None
    for part in ("yes", "</think>", "<tool_call>"):
        assert part in found.text
