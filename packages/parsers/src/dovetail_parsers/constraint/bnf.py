"""Grammars as rules: the common part of GBNF, the notation of llama.cpp, and xgrammar's EBNF.

Names and literals come from users: they are only ever written in quotes and escaped.
"""

from abc import ABC, abstractmethod
from collections import deque

from dovetail_parsers.constraint.nodes import (
    Chars,
    Choice,
    FreeText,
    GrammarSpec,
    Node,
    Ref,
    Repeat,
    Sequence,
    Text,
    Token,
)

_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t", '"': r"\"", "\\": "\\\\"}


class RuleWriter(ABC):
    """Writes a grammar without markers. The notations differ in `token` and `free`."""

    def __init__(self, spec: GrammarSpec) -> None:
        self._rules = spec.rules.nodes
        self._free: dict[FreeText, str] = {}
        self._todo: deque[str] = deque()
        self.lines: dict[str, str] = {"root": ""}
        self.lines["root"] = self.expression(spec.root)

    def text(self) -> str:
        """Return the text of the grammar: the root first, each required rule once."""
        while self._todo:
            name = self._todo.popleft()
            if name not in self.lines:
                self.lines[name] = ""
                self.lines[name] = self.expression(self._rules[name])
        return "".join(f"{name} ::= {expression}\n" for name, expression in self.lines.items())

    @abstractmethod
    def token(self, token: Token) -> str: ...

    @abstractmethod
    def free(self, name: str, free: FreeText) -> str:
        """Add the rules of a free text, with names starting with `name`; return the one to use."""

    def expression(self, node: Node) -> str:
        if isinstance(node, Choice):
            return " | ".join(map(self._part, node.options))
        if isinstance(node, Sequence) and node.parts:
            return " ".join(map(self._part, node.parts))
        return self._part(node)

    def _part(self, node: Node) -> str:
        match node:
            case Text():
                return quoted(node.text)
            case Token():
                return self.token(node)
            case Chars():
                return char_class(node.ranges, node.negated)
            case Ref():
                self._todo.append(node.rule)
                return node.rule
            case FreeText():
                return self._named(node)
            case Repeat():
                return self._atom(node.part) + _repetition(node.min_count, node.max_count)
            case Sequence(parts=()):
                return '""'
            case _:
                return f"({self.expression(node)})"

    def _atom(self, node: Node) -> str:
        return f"({self._part(node)})" if isinstance(node, Repeat) else self._part(node)

    def _named(self, free: FreeText) -> str:
        if free not in self._free:
            name = self._free[free] = f"free{len(self._free)}"
            self._free[free] = self.free(name, free)
        return self._free[free]


def single_char_ranges(chars: str) -> tuple[tuple[str, str], ...]:
    return tuple((char, char) for char in chars)


def _repetition(min_count: int, max_count: int | None) -> str:
    match min_count, max_count:
        case 0, 1:
            return "?"
        case 0, None:
            return "*"
        case 1, None:
            return "+"
    if min_count == max_count:
        return f"{{{min_count}}}"
    return f"{{{min_count},{'' if max_count is None else max_count}}}"


def quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if char.isprintable() or char == " ":
        return char
    return _numbered(char)


def char_class(ranges: tuple[tuple[str, str], ...], negated: bool = False) -> str:
    parts = (_member(a) if a == b else f"{_member(a)}-{_member(b)}" for a, b in ranges)
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _member(char: str) -> str:
    """Escape a character for a class, in which many characters have a meaning."""
    return char if char.isascii() and char.isalnum() else _numbered(char)


def _numbered(char: str) -> str:
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:  # a lone surrogate, which no output can contain
        code = 0xFFFD
    # never \x: xgrammar reads all following hexadecimal digits as part of the number
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
