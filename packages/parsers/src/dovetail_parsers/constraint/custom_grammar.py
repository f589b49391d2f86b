"""The grammar of a custom tool: the subset of Lark that such tools use.

Rules and terminals both become rules over characters. Other features (`%ignore`, flags,
look-around, left recursion) are not enforced. The text is written as the family writes strings:
raw, up to a closer that must not occur in it, or as the inside of a JSON string.
"""

import json
import re
from collections.abc import Iterator

from dovetail_parsers.constraint.nodes import (
    Chars,
    Choice,
    Node,
    Ref,
    Repeat,
    Rules,
    Sequence,
    choice,
    repeat,
    sequence,
)
from dovetail_parsers.constraint.pattern import PatternReader, UnsupportedPattern, may_be_empty
from dovetail_parsers.constraint.style import TextStyle

#: The keyword in a string's schema that contains a grammar.
GRAMMAR_KEYWORD = "x-lark"

_MAX_GRAMMAR_CHARS = 20_000
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<regex>/(?:[^/\\\n]|\\.)+/)|(?P<name>[a-zA-Z_]\w*)'
    r"|(?P<times>[?*+])|(?P<mark>[()|\[\]]))"
)
_COMMON_TERMINALS = {
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "DIGIT": "[0-9]",
    "INT": "[0-9]+",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z_0-9]*",
    "WS_INLINE": r"[ \t]+",
}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_ANY = Chars((("\n", "\n"),), negated=True)


def parse_lark_grammar(definition: object, style: TextStyle, rules: Rules) -> Node | None:
    """Convert the grammar; None, with a note, if it uses unsupported features."""
    try:
        if not isinstance(definition, str) or len(definition) > _MAX_GRAMMAR_CHARS:
            raise UnsupportedPattern
        return _Grammar(definition, style, rules).start()
    except (UnsupportedPattern, RecursionError):
        rules.note("the grammar of a custom tool is not enforced")
        return None


class _Grammar:
    __slots__ = ("_definitions", "_names", "_nodes", "_rules", "_style", "_tokens")

    def __init__(self, definition: str, style: TextStyle, rules: Rules) -> None:
        self._definitions = dict(_definitions(definition))
        self._style = style
        self._rules = rules
        self._names: dict[str, str] = {}
        self._nodes: dict[str, Node] = {}
        self._tokens: list[tuple[str, str]] = []

    def start(self) -> Node:
        form = self._named("start")
        for name, node in self._nodes.items():
            if name in _firsts(node, self._nodes):
                raise UnsupportedPattern
        return form

    def _named(self, name: str) -> Node:
        if name not in self._definitions:
            raise UnsupportedPattern
        if name not in self._names:
            rule = self._names[name] = self._rules.reserve("lark")
            saved, self._tokens = self._tokens, list(_tokens(self._definitions[name]))[::-1]
            node = self._options()
            if self._tokens:
                raise UnsupportedPattern
            self._tokens = saved
            self._nodes[rule] = node
            self._rules.define(rule, node)
        return Ref(self._names[name])

    def _options(self) -> Node:
        options = [self._sequence()]
        while self._tokens and self._tokens[-1] == ("mark", "|"):
            self._tokens.pop()
            options.append(self._sequence())
        return choice(*options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._tokens and self._tokens[-1] not in (("mark", c) for c in "|)]"):
            part = self._part(*self._tokens.pop())
            if self._tokens and self._tokens[-1][0] == "times":
                min_count, max_count = {"?": (0, 1), "*": (0, None), "+": (1, None)}[
                    self._tokens.pop()[1]
                ]
                if may_be_empty(part) and max_count is None:
                    raise UnsupportedPattern
                part = repeat(part, min_count, max_count)
            parts.append(part)
        return sequence(*parts)

    def _part(self, kind: str, token: str) -> Node:
        if kind == "text":
            return self._style.literal(_unescaped(token))
        if kind == "regex":
            return _Regex(token[1:-1].replace(r"\/", "/"), self._style).whole()
        if kind == "name":
            return self._named(token)
        if kind == "mark" and token in "([":
            inner = self._options()
            if not self._tokens or self._tokens.pop() != ("mark", ")" if token == "(" else "]"):
                raise UnsupportedPattern
            return repeat(inner, 0, 1) if token == "[" else inner
        raise UnsupportedPattern


class _Regex(PatternReader):
    """A regular expression over all characters."""

    __slots__ = ("_style",)

    def __init__(self, pattern: str, style: TextStyle) -> None:
        super().__init__(pattern)
        self._style = style

    def whole(self) -> Node:
        options = [self._sequence()]
        while self._peek() == "|":
            self._take()
            options.append(self._sequence())
        if self._peek():
            raise UnsupportedPattern
        return choice(*options)

    def dot(self) -> Node:
        return _ANY

    def character(self, char: str) -> Node:
        return self._style.literal(char)

    def escape(self, char: str) -> tuple[tuple[str, str], ...]:
        if char in _ESCAPES:
            return ((_ESCAPES[char], _ESCAPES[char]),)
        if char == "s":
            return ((" ", " "), *((c, c) for c in "\t\n\r"))
        return super().escape(char)

    def chars(self, ranges: tuple[tuple[str, str], ...], negated: bool) -> Node:
        return self._style.chars(Chars(ranges, negated))

    def repeated(self, part: Node, min_count: int, max_count: int | None) -> Node:
        if part is _ANY and max_count is None and min_count < 2:
            return self._style.line(min_count)
        return repeat(self._style.chars(_ANY) if part is _ANY else part, min_count, max_count)


def _definitions(grammar: str) -> Iterator[tuple[str, str]]:
    """Yield names and their expressions. Lines that start with a bar continue an expression."""
    for common, pattern in _imports(grammar):
        yield common, f"/{pattern}/"
    name, expression = "", ""
    for line in (line.strip() for line in grammar.splitlines()):
        if not line or line.startswith(("//", "#", "%import common.")):
            continue
        begun = re.match(r"[?!]?([a-zA-Z_]\w*)\s*:(?!:)\s*(.*)", line)
        if begun:
            if name:
                yield name, expression
            name, expression = begun[1], begun[2]
        elif line.startswith("|") and name:
            expression += " " + line
        else:
            raise UnsupportedPattern
    yield name, expression


def _imports(grammar: str) -> Iterator[tuple[str, str]]:
    for name in re.findall(r"^\s*%import common\.(\w+)\s*$", grammar, re.MULTILINE):
        if name not in _COMMON_TERMINALS:
            raise UnsupportedPattern
        yield name, _COMMON_TERMINALS[name]


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    expression = re.sub(r"\s->\s*\w+", "", expression).strip()
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise UnsupportedPattern
        at = found.end()
        assert found.lastgroup is not None
        if found.lastgroup in ("text", "regex") and expression[at : at + 1].isalpha():
            raise UnsupportedPattern  # a flag
        yield found.lastgroup, found[found.lastgroup]


def _unescaped(token: str) -> str:
    try:
        value = json.loads(token)
    except ValueError:
        raise UnsupportedPattern from None
    return str(value)


def _firsts(node: Node, rules: dict[str, Node]) -> set[str]:
    """Return the rules that a text of this node may start with."""
    found: set[str] = set()
    todo = [node]
    while todo:
        match todo.pop():
            case Ref(rule=rule) if rule not in found:
                found.add(rule)
                todo.append(rules[rule])
            case Repeat(part=part):
                todo.append(part)
            case Choice(options=options):
                todo += options
            case Sequence(parts=parts):
                for part in parts:
                    todo.append(part)
                    if not may_be_empty(part):
                        break
    return found
