"""Read grammars in GBNF, the notation of llama.cpp, which xgrammar calls EBNF.

Supported are rules, literals, character classes, groups, alternatives and repetition. Everything is
about characters: elements that name tokens are not supported.
"""

import re
from collections.abc import Iterator

from dovetail_parsers.constraint.nodes import Chars, Node, Rules, text
from dovetail_parsers.constraint.pattern import UnsupportedPattern
from dovetail_parsers.constraint.rule_grammar import GrammarToken, RuleGrammar

_MAX_GRAMMAR_CHARS = 50_000
_MAX_REPETITIONS = 1_000
_TOKEN = re.compile(
    r'\s*(?:#[^\n]*|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<chars>\[(?:[^\]\\]|\\.)*\])|(?P<any>\.)'
    r"|(?P<name>[A-Za-z_][\w-]*)|(?P<define>::=)|(?P<times>[?*+]|\{\s*\d+\s*(?:,\s*\d*\s*)?\})"
    r"|(?P<mark>[()|]))"
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_NAMED_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0"}
_ANY = Chars((("\0", "\U0010ffff"),))


def is_bnf(grammar: str) -> bool:
    """Return whether a grammar is in this notation; Lark defines rules with a single colon."""
    return "::=" in grammar


def read_bnf_grammar(grammar: str, rules: Rules) -> Node:
    """Convert the grammar. Raises `UnsupportedPattern` if it uses unsupported features."""
    if len(grammar) > _MAX_GRAMMAR_CHARS:
        raise UnsupportedPattern(f"it has more than {_MAX_GRAMMAR_CHARS} characters")
    return _BnfGrammar(_definitions(grammar), rules).build("root")


class _BnfGrammar(RuleGrammar):
    __slots__ = ()

    def terminal(self, kind: str, token: str) -> Node:
        match kind:
            case "text":
                return text("".join(_characters(token[1:-1])))
            case "chars":
                return _char_class(token[1:-1])
            case "any":
                return _ANY
        raise UnsupportedPattern(f"unexpected {token!r}")

    def counts(self, token: str) -> tuple[int, int | None]:
        if token[0] != "{":
            return super().counts(token)
        low, comma, high = token[1:-1].partition(",")
        min_count = int(low)
        max_count = int(high) if high.strip() else None if comma else min_count
        if max(min_count, max_count or 0) > _MAX_REPETITIONS:
            raise UnsupportedPattern(f"more than {_MAX_REPETITIONS} repetitions")
        if max_count is not None and max_count < min_count:
            raise UnsupportedPattern(f"invalid repetition {token}")
        return min_count, max_count


def _definitions(grammar: str) -> dict[str, list[GrammarToken]]:
    """Split the grammar into rules: a name before `::=` starts the next one."""
    found: dict[str, list[GrammarToken]] = {}
    current: list[GrammarToken] = []
    for token in _tokens(grammar):
        if token[0] != "define":
            current.append(token)
            continue
        kind, name = current.pop() if current else ("", "")
        if kind != "name" or name in found or (current and not found):
            raise UnsupportedPattern(f"invalid rule {name!r}")
        current = found[name] = []
    return found


def _tokens(grammar: str) -> Iterator[GrammarToken]:
    grammar = grammar.rstrip()
    at = 0
    while at < len(grammar):
        token = _TOKEN.match(grammar, at)
        if token is None:
            raise UnsupportedPattern(f"unexpected {grammar[at:].lstrip()[:10]!r}")
        at = token.end()
        if token.lastgroup is not None:
            yield token.lastgroup, token[token.lastgroup]


def _char_class(inner: str) -> Node:
    negated = inner.startswith("^")
    # An escaped hyphen or the first or last one is a member, others form ranges.
    members = list(_members(inner[1:] if negated else inner))
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(members):
        low = members[at][0]
        if at + 2 < len(members) and members[at + 1] == ("-", False):
            high = members[at + 2][0]
            if high < low:
                raise UnsupportedPattern(f"invalid range {low}-{high}")
            ranges.append((low, high))
            at += 3
        else:
            ranges.append((low, low))
            at += 1
    if not ranges:
        raise UnsupportedPattern("a character class is empty")
    return Chars(tuple(ranges), negated)


def _members(inner: str) -> Iterator[tuple[str, bool]]:
    """Yield the characters of a class, and whether each is escaped."""
    at = 0
    while at < len(inner):
        found = _ESCAPE.match(inner, at)
        yield (_unescaped(found), True) if found else (inner[at], False)
        at = found.end() if found else at + 1


def _characters(inner: str) -> Iterator[str]:
    return (char for char, _ in _members(inner))


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    if code is None:
        return _NAMED_ESCAPES.get(found[4], found[4])
    if int(code, 16) > 0x10FFFF:
        raise UnsupportedPattern(f"invalid character {found[0]}")
    return chr(int(code, 16))
