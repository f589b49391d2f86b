"""Grammars of bodies: complete calls as JSON or Python, and arguments as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail_model import ToolSpec, Unsupported
from dovetail_parsers.arguments.body import Body
from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.arguments.pythonic import Pythonic
from dovetail_parsers.arguments.schema import Schema
from dovetail_parsers.arguments.tree import TagTree
from dovetail_parsers.constraint.custom_grammar import GRAMMAR_KEYWORD
from dovetail_parsers.constraint.members import MemberDelimiters, ObjectMember, ordered_members
from dovetail_parsers.constraint.nodes import (
    Chars,
    Node,
    Rules,
    choice,
    optional,
    repeat,
    sequence,
    text,
)
from dovetail_parsers.constraint.notation import JSON, PYTHON, dialect_notation
from dovetail_parsers.constraint.options import has_open_keys, properties, required_keys
from dovetail_parsers.constraint.schema import ValueGrammar
from dovetail_parsers.constraint.tree import tree_arguments_grammar
from dovetail_parsers.constraint.walk import CALL_COUNT

_SPACE = optional(text(" "))
_COLON = sequence(text(":"), _SPACE)
_COMMA = sequence(text(","), _SPACE)
_LETTERS = (("A", "Z"), ("_", "_"), ("a", "z"))
_KEYWORD = sequence(Chars(_LETTERS), repeat(Chars((("0", "9"), *_LETTERS))))


@dataclass(frozen=True)
class GuidedTool:
    """A tool with the name and schema that the model sees."""

    name: str
    schema: Schema


def to_guided_tool(spec: ToolSpec) -> GuidedTool:
    """Convert a tool. The grammar of a custom tool becomes a keyword of its string's schema."""
    schema = spec.model_parameters
    if spec.custom and spec.grammar is not None:
        schema = {
            **schema,
            "properties": {"input": {"type": "string", GRAMMAR_KEYWORD: spec.grammar}},
        }
    return GuidedTool(spec.model_name, schema)


def arguments_grammar(body: Body, tool: GuidedTool, rules: Rules) -> Node:
    """Return the grammar of the arguments of a call whose name precedes them."""
    if isinstance(body, TagTree):
        return tree_arguments_grammar(body, tool.schema, rules)
    if isinstance(body, JsonBody):
        return ValueGrammar(tool.schema, dialect_notation(body.dialect), rules).arguments(
            tool.schema
        )
    raise Unsupported(f"guided decoding does not support arguments as {type(body).__name__}")


def calls_grammar(body: Body, tools: Sequence[GuidedTool], rules: Rules, parallel: bool) -> Node:
    """Return the grammar of one body: one call of one of the tools, or several calls."""
    if isinstance(body, Envelope):
        one = rules.share("call", choice(*(_envelope(body, tool, rules) for tool in tools)))
        brackets, comma = ("[", "]") if body.many else ("", ""), _COMMA
    elif isinstance(body, Pythonic):
        one = rules.share("call", choice(*(_python_call(tool, rules) for tool in tools)))
        brackets = ("[", "]") if body.brackets else ("", "")
        comma = _COMMA if body.brackets else text("\n")
    else:
        raise Unsupported(f"guided decoding does not support calls as {type(body).__name__}")
    more = repeat(sequence(comma, one)) if parallel and body.holds_many else text("")
    return sequence(text(brackets[0]), one, more, text(brackets[1]))


def _envelope(body: Envelope, tool: GuidedTool, rules: Rules) -> Node:
    name = text(json.dumps(tool.name, ensure_ascii=False))
    arguments = ValueGrammar(tool.schema, JSON, rules).arguments(tool.schema)
    if not body.name:
        return sequence(text("{"), name, _COLON, arguments, text("}"))
    own_id = text("")
    if body.write_id:
        own_id = sequence(_key(body.id[0]), text('"'), CALL_COUNT, text('"'), _COMMA)
    return sequence(
        text("{"),
        own_id,
        _key(body.name[0]),
        name,
        _COMMA,
        _key(body.arguments[0]),
        arguments,
        text("}"),
    )


def _key(name: str) -> Node:
    return sequence(text(f'"{name}"'), _COLON)


def _python_call(tool: GuidedTool, rules: Rules) -> Node:
    values = ValueGrammar(tool.schema, PYTHON, rules)
    lists: list[Node] = []
    for option in values.objects(tool.schema):
        if has_open_keys(option.schema):
            lists.append(_any_keywords(values, option.schema.get("additionalProperties")))
            continue
        must = required_keys(option.schema)
        members = [
            ObjectMember(sequence(text(f"{name}="), values.value(sub)), name in must)
            for name, sub in properties(option.schema).items()
        ]
        lists.append(ordered_members(members, MemberDelimiters(between=_COMMA), rules))
    return sequence(text(f"{tool.name}("), choice(*lists), text(")"))


def _any_keywords(values: ValueGrammar, schema: object) -> Node:
    """Arguments with arbitrary names."""
    value = values.value(schema) if isinstance(schema, Mapping) else values.any_value()
    one = sequence(_KEYWORD, text("="), value)
    return optional(sequence(one, repeat(sequence(_COMMA, one))))
