"""The grammar of a custom tool: the subset of Lark that such tools use.

Rules and terminals both become rules over characters. Other features (`%ignore`, flags,
look-around, left recursion) are not enforced. The text is written as the family writes strings:
raw, up to a closer that must not occur in it, or as the inside of a JSON string.
"""

import json
import re
from collections.abc import Iterator

from dovetail_parsers.constraint.nodes import Chars, Node, Rules, choice, repeat
from dovetail_parsers.constraint.pattern import PatternReader, UnsupportedPattern
from dovetail_parsers.constraint.rule_grammar import RuleGrammar
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
        if not isinstance(definition, str):
            raise UnsupportedPattern
        return read_lark_grammar(definition, style, rules)
    except (UnsupportedPattern, RecursionError):
        rules.note("the grammar of a custom tool is not enforced")
        return None


def read_lark_grammar(definition: str, style: TextStyle, rules: Rules) -> Node:
    """Convert the grammar. Raises `UnsupportedPattern` if it uses unsupported features."""
    if len(definition) > _MAX_GRAMMAR_CHARS:
        raise UnsupportedPattern(f"it has more than {_MAX_GRAMMAR_CHARS} characters")
    return _LarkGrammar(definition, style, rules).build("start")


class _LarkGrammar(RuleGrammar):
    __slots__ = ("_style",)

    def __init__(self, definition: str, style: TextStyle, rules: Rules) -> None:
        definitions = {name: list(_tokens(text)) for name, text in _definitions(definition)}
        super().__init__(definitions, rules)
        self._style = style

    def terminal(self, kind: str, token: str) -> Node:
        if kind == "text":
            return self._style.literal(_unescaped(token))
        if kind == "regex":
            return read_regex(token[1:-1].replace(r"\/", "/"), self._style)
        raise UnsupportedPattern


def read_regex(pattern: str, style: TextStyle) -> Node:
    """Convert a regular expression that the whole text must match."""
    return _Regex(pattern, style).whole()


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
