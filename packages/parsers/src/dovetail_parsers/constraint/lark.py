"""Grammars in Lark, as llguidance reads it.

That engine splits text into terminals before it applies rules, and does not backtrack. Therefore
everything that can be one regular expression is one terminal, however long; rules are used only for
tokens and recursive schemas. Its terminals support intersection and complement, which define free
text. Plain text never matches a token there.

If tokens follow, a text that ends with a marker is a separate lazy terminal: the engine (1.7) fails
on a token after a terminal that ends by a complement.
"""

import json
from collections import deque
from collections.abc import Iterable
from itertools import groupby

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
    choice,
    sequence,
)

_ANY = "/(?s:.*)/"
_SOME = "/(?s:.+)/"


def write_lark(spec: GrammarSpec) -> str:
    return _LarkWriter(spec).text()


class _LarkWriter:
    __slots__ = ("_free", "_irregular", "_lazy", "_lines", "_rules", "_terminals", "_todo")

    def __init__(self, spec: GrammarSpec) -> None:
        self._rules = spec.rules.nodes
        self._lazy = any(_holds_token(node) for node in (spec.root, *self._rules.values()))
        self._irregular = _irregular(self._rules, self._lazy)
        self._free: dict[FreeText, str] = {}
        self._terminals: dict[Node, str] = {}
        self._todo: deque[str] = deque()
        self._lines: dict[str, str] = {"start": ""}
        self._lines["start"] = self._rule(spec.root)

    def text(self) -> str:
        while self._todo:
            name = self._todo.popleft()
            write, line = (
                (self._rule, name) if name in self._irregular else (self._part, name.upper())
            )
            if line not in self._lines:
                self._lines[line] = ""
                self._lines[line] = write(self._rules[name])
        return "".join(f"{name}: {expression}\n" for name, expression in self._lines.items())

    # Rules

    def _rule(self, node: Node) -> str:
        """Write a node as part of a rule. Regular parts are one terminal."""
        if self._is_regular(node):
            return self._terminal(node)
        match node:
            case Token():
                return f"<[{node.id}]>"
            case FreeText():
                return self._lazy_text(node)
            case Ref():
                self._todo.append(node.rule)
                return node.rule
            case Repeat():
                return f"({self._rule(node.part)}){_repetition(node.min_count, node.max_count)}"
            case Sequence():
                return " ".join(map(self._rule, self._runs(node.parts)))
            case Choice():
                regular = [option for option in node.options if self._is_regular(option)]
                others = [option for option in node.options if not self._is_regular(option)]
                options = [*([choice(*regular)] if regular else []), *others]
                return f"({' | '.join(map(self._rule, options))})"
        raise AssertionError(node)

    def _runs(self, parts: Iterable[Node]) -> Iterable[Node]:
        for regular, run in groupby(parts, self._is_regular):
            if regular:
                yield sequence(*run)
            else:
                yield from run

    def _is_regular(self, node: Node) -> bool:
        return not _holds(node, self._irregular, self._lazy)

    # Terminals

    def _terminal(self, node: Node) -> str:
        if isinstance(node, Ref | FreeText):
            return self._part(node)
        if node not in self._terminals:
            self._terminals[node] = f"T{len(self._terminals)}"
            self._lines[self._terminals[node]] = self._part(node)
        return self._terminals[node]

    def _part(self, node: Node) -> str:
        match node:
            case Text():
                return _quoted(node.text)
            case Chars():
                return _class(node)
            case FreeText():
                return self._free_text(node)
            case Ref():
                self._todo.append(node.rule)
                return node.rule.upper()
            case Repeat():
                return f"({self._part(node.part)}){_repetition(node.min_count, node.max_count)}"
            case Sequence():
                return f"({' '.join(map(self._part, node.parts))})" if node.parts else '""'
            case Choice():
                return f"({' | '.join(map(self._part, node.options))})"
        raise AssertionError(node)

    def _free_text(self, free: FreeText) -> str:
        if free not in self._free:
            name = self._free[free] = f"FREE{len(self._free)}"
            self._lines[name] = _free(free, lazy=self._lazy)
        return self._free[free]

    def _lazy_text(self, free: FreeText) -> str:
        name = self._free_text(free)
        self._lines[f"{name.lower()}[lazy]"] = name
        return name.lower()


def _free(free: FreeText, lazy: bool) -> str:
    """Text up to the first stop; a lazy terminal ends there by itself."""
    demands = [_ANY]
    if free.stops:
        ended = f"{_ANY} {_literals(free.stops)}"
        demands = [f"({ended})"] if lazy else [f"({ended})", f"~({ended} {_SOME})"]
    if free.never:
        demands.append(f"~({_ANY} {_literals(free.never)} {_ANY})")
    if free.not_first:
        first = Chars(tuple((char, char) for char in free.not_first))
        demands.append(f"~({_class(first)} {_ANY})")
    return " & ".join(demands)


def _literals(texts: Iterable[str]) -> str:
    return f"({' | '.join(map(_quoted, texts))})"


def _repetition(min_count: int, max_count: int | None) -> str:
    match min_count, max_count:
        case 0, 1:
            return "?"
        case 0, None:
            return "*"
        case 1, None:
            return "+"
    return f"{{{min_count},{'' if max_count is None else max_count}}}"


def _quoted(text: str) -> str:
    """Quote as JSON. Servers mistake a text that contains `::=` for another notation."""
    whole = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    quoted = json.dumps(whole, ensure_ascii=False).replace("\x7f", r"\u007f")
    return quoted.replace("::=", r":\u003a=")


def _class(chars: Chars) -> str:
    parts = (_member(a) if a == b else f"{_member(a)}-{_member(b)}" for a, b in chars.ranges)
    return f"/[{'^' if chars.negated else ''}{''.join(parts)}]/"


def _member(char: str) -> str:
    if char.isascii() and char.isalnum():
        return char
    code = ord(char)
    return rf"\u{{{0xFFFD if 0xD800 <= code <= 0xDFFF else code:x}}}"


def _irregular(rules: dict[str, Node], lazy: bool) -> frozenset[str]:
    """Return the rules that no terminal can contain: with tokens, recursion, or such rules."""
    left = {name: _references(node) for name, node in rules.items() if not _holds(node, (), lazy)}
    users: dict[str, list[str]] = {}
    for name, references in left.items():
        for one in references:
            users.setdefault(one, []).append(name)
    regular = [name for name, references in left.items() if not references]
    for name in regular:  # grows: a rule is regular once all rules it refers to are
        for user in users.get(name, ()):
            left[user].discard(name)
            if not left[user]:
                regular.append(user)
    return frozenset(rules.keys() - regular)


def _references(node: Node) -> set[str]:
    match node:
        case Ref():
            return {node.rule}
        case Repeat():
            return _references(node.part)
        case Sequence():
            return set().union(*map(_references, node.parts))
        case Choice():
            return set().union(*map(_references, node.options))
    return set()


def _holds(node: Node, rules: Iterable[str], lazy: bool) -> bool:
    """Return whether a node contains a token or lazy text, or refers to one of the rules."""
    match node:
        case Token():
            return True
        case FreeText():
            return lazy and bool(node.stops)
        case Ref():
            return node.rule in rules
        case Repeat():
            return _holds(node.part, rules, lazy)
        case Sequence():
            return any(_holds(part, rules, lazy) for part in node.parts)
        case Choice():
            return any(_holds(option, rules, lazy) for option in node.options)
    return False


def _holds_token(node: Node) -> bool:
    return _holds(node, (), lazy=False)
