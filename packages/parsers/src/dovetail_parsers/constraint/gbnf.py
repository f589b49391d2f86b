"""Forms in GBNF, the notation of llama.cpp.

Names and literals come from users: they are only ever written between quotes, escaped.
"""

from collections.abc import Iterator

from dovetail_parsers.constraint.automaton import State, automaton, first_state
from dovetail_parsers.constraint.form import (
    Chars,
    Choice,
    Form,
    Free,
    Marker,
    Node,
    Ref,
    Repeat,
    Sequence,
    Text,
)

_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t", '"': r"\"", "\\": "\\\\"}


def write_gbnf(form: Form) -> str:
    """The grammar's text: the root first, every rule that it needs once."""
    return "\n".join(_Writer(form).lines()) + "\n"


class _Writer:
    __slots__ = ("_free", "_lines", "_rules", "_todo")

    def __init__(self, form: Form) -> None:
        self._rules = form.rules.nodes
        self._free: dict[Free, str] = {}
        self._todo: list[str] = []
        self._lines: dict[str, str] = {"root": ""}
        self._lines["root"] = self._expression(form.root)

    def lines(self) -> Iterator[str]:
        while self._todo:
            name = self._todo.pop(0)
            if name not in self._lines:
                self._lines[name] = ""
                self._lines[name] = self._expression(self._rules[name])
        return (f"{name} ::= {expression}" for name, expression in self._lines.items())

    def _expression(self, node: Node) -> str:
        if isinstance(node, Choice):
            return " | ".join(map(self._part, node.options))
        if isinstance(node, Sequence) and node.parts:
            return " ".join(map(self._part, node.parts))
        return self._part(node)

    def _part(self, node: Node) -> str:
        match node:
            case Text() | Marker():
                return _quoted(node.text)
            case Chars():
                return _class(node.ranges, node.negated)
            case Ref():
                self._todo.append(node.rule)
                return node.rule
            case Free():
                return self._automaton(node)
            case Repeat():
                return self._atom(node.part) + _times(node.least, node.most)
            case Sequence(parts=()):
                return '""'
            case _:
                return f"({self._expression(node)})"

    def _atom(self, node: Node) -> str:
        return f"({self._part(node)})" if isinstance(node, Repeat) else self._part(node)

    def _automaton(self, free: Free) -> str:
        """Text up to a marker: a rule for each state. The rules go on at their ends only."""
        name = self._free.get(free)
        if name is None:
            name = self._free[free] = f"free{len(self._free)}"
            states = automaton(free)
            for number, state in enumerate(states):
                self._lines[f"{name}-{number}"] = _moves(name, state, ends=not free.stops)
            first = first_state(free, states[0])
            if free.not_first:
                self._lines[f"{name}-first"] = _moves(name, first, ends=not free.stops)
        return f"{name}-first" if free.not_first else f"{name}-0"


def _moves(name: str, state: State, ends: bool) -> str:
    targets: dict[int | None, str] = {}
    for char, target in state.moves.items():
        targets[target] = targets.get(target, "") + char
    elsewhere = "".join(sorted({*state.moves, *state.dead})) or "\0"  # an empty class is no class
    ways = [_class(_each(elsewhere), negated=True) + f" {name}-0"]
    for target, chars in targets.items():
        ways.append(_class(_each(chars)) + (f" {name}-{target}" if target is not None else ""))
    return " | ".join([*ways, '""'] if ends else ways)


def _each(chars: str) -> tuple[tuple[str, str], ...]:
    return tuple((char, char) for char in chars)


def _times(least: int, most: int | None) -> str:
    match least, most:
        case 0, 1:
            return "?"
        case 0, None:
            return "*"
        case 1, None:
            return "+"
    if least == most:
        return f"{{{least}}}"
    return f"{{{least},{'' if most is None else most}}}"


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if char.isprintable() or char == " ":
        return char
    return _numbered(char)


def _class(ranges: tuple[tuple[str, str], ...], negated: bool = False) -> str:
    parts = (_member(a) if a == b else f"{_member(a)}-{_member(b)}" for a, b in ranges)
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _member(char: str) -> str:
    """A character in a class, where many mean something of their own."""
    return char if char.isascii() and char.isalnum() else _numbered(char)


def _numbered(char: str) -> str:
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:  # half a character: no output can contain it
        code = 0xFFFD
    if code < 0x80:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
