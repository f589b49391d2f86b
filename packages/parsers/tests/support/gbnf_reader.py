"""A reader of GBNF, the oracle for the written grammars.

It parses the notation from its text and follows all parses at once with a set of stacks, like
llama.cpp, so that grammars which that engine rejects (unknown rules, left recursion) fail here too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from random import Random

_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<chars>\[\^?(?:[^\]\\]|\\.)*\])'
    r"|(?P<times>[?*+]|\{\d+(?:,\d*)?\})|(?P<mark>[()|])|(?P<rule>[a-z][a-z0-9-]*))"
)
_ESCAPE = re.compile(r"\\(?:x(..)|u(....)|U(........)|(.))", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}

SAMPLES = "ab01 é漢<>/{}[]\"'\\:,\n|"

Ranges = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Char:
    ranges: Ranges
    negated: bool

    def takes(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.negated


Element = Char | str
Sequence = tuple[Element, ...]


@dataclass
class Gbnf:
    """`accepts` a complete text; `admits` a prefix of a complete text."""

    rules: dict[str, list[Sequence]] = field(default_factory=dict)
    _frames: list[tuple[Sequence, int, int]] = field(default_factory=list)
    _known: dict[tuple[Sequence, int, int], int] = field(default_factory=dict)
    _tops: dict[int, frozenset[int]] = field(default_factory=dict)
    _costs: dict[str, float] = field(default_factory=dict)

    def accepts(self, text: str) -> bool:
        return -1 in self._after(text)

    def admits(self, text: str) -> bool:
        return bool(self._after(text))

    def sample(self, random: Random, size: int) -> str:
        """Return some text that the grammar accepts: `size` random characters, then to the end."""
        if not self._costs:
            self._costs = _costs(self.rules)
        text: list[str] = []
        todo: list[Element] = ["root"]
        while todo:
            top = todo.pop()
            if isinstance(top, Char):
                text.append(
                    random.choice([c for c in SAMPLES if top.takes(c)] or [top.ranges[0][0]])
                )
                continue
            options = self.rules[top]
            if len(text) + len(todo) > size:
                lowest_cost = min(_cost(way, self._costs) for way in options)
                options = [way for way in options if _cost(way, self._costs) == lowest_cost]
            todo += reversed(random.choice(options))
        return "".join(text)

    def _after(self, text: str) -> frozenset[int]:
        stacks = frozenset(s for way in self.rules["root"] for s in self._expand(way, 0, -1, ()))
        for char in text:
            stacks = frozenset(found for stack in stacks for found in self._step(stack, char))
        return stacks

    def _step(self, stack: int, char: str) -> Iterator[int]:
        if stack >= 0:
            way, at, below = self._frames[stack]
            top = way[at]
            if isinstance(top, Char) and top.takes(char):
                yield from self._expand(way, at + 1, below, ())

    def _expand(
        self, way: Sequence, at: int, below: int, inside: tuple[str, ...]
    ) -> frozenset[int]:
        """Return the stacks, each with a character on top, or -1 for the end."""
        if at == len(way):
            if below < 0:
                return frozenset({-1})
            return self._expand(*self._frames[below], inside)
        frame = self._frame(way, at, below)
        if isinstance(way[at], Char):
            return frozenset({frame})
        if frame not in self._tops:
            self._tops[frame] = self._enter(way, at, below, inside)
        return self._tops[frame]

    def _enter(self, way: Sequence, at: int, below: int, inside: tuple[str, ...]) -> frozenset[int]:
        rule = way[at]
        assert isinstance(rule, str)
        if inside.count(rule) > 20:
            raise ValueError(f"the rule {rule} is left-recursive")
        rest = self._frame(way, at + 1, below) if at + 1 < len(way) else below
        found: set[int] = set()
        for option in self.rules[rule]:
            found |= self._expand(option, 0, rest, (*inside, rule))
        return frozenset(found)

    def _frame(self, way: Sequence, at: int, below: int) -> int:
        key = (way, at, below)
        if key not in self._known:
            self._known[key] = len(self._frames)
            self._frames.append(key)
        return self._known[key]


def _costs(rules: dict[str, list[Sequence]]) -> dict[str, float]:
    """Return the minimum number of characters and rules that each rule takes."""
    costs = dict.fromkeys(rules, inf)
    while True:
        better = {name: min(_cost(way, costs) for way in ways) for name, ways in rules.items()}
        if better == costs:
            return costs
        costs = better


def _cost(way: Sequence, costs: dict[str, float]) -> float:
    return 1 + sum(1 if isinstance(part, Char) else costs[part] for part in way)


def read(text: str) -> Gbnf:
    """Parse a grammar. Raise if the text is not valid GBNF."""
    reader = _Reader()
    for line in text.splitlines():
        name, mark, expression = line.partition(" ::= ")
        if not mark or name in reader.rules:
            raise ValueError(f"no rule, or a second one: {line!r}")
        reader.rules[name] = []
        reader.rules[name] = reader.rule(expression)
    used = {e for ways in reader.rules.values() for way in ways for e in way if isinstance(e, str)}
    if missing := used - reader.rules.keys():
        raise ValueError(f"rules are missing: {missing}")
    if unused := reader.rules.keys() - used - {"root"}:
        raise ValueError(f"rules are not used: {unused}")
    return Gbnf(reader.rules)


class _Reader:
    def __init__(self) -> None:
        self.rules: dict[str, list[Sequence]] = {}
        self._tokens: list[tuple[str, str]] = []

    def rule(self, expression: str) -> list[Sequence]:
        self._tokens = list(_tokens(expression))[::-1]
        options = self._options()
        if self._tokens:
            raise ValueError(f"left over in {expression!r}")
        return options

    def _options(self) -> list[Sequence]:
        options = [self._sequence()]
        while self._tokens and self._tokens[-1] == ("mark", "|"):
            self._tokens.pop()
            options.append(self._sequence())
        return options

    def _sequence(self) -> Sequence:
        parts: list[Element] = []
        while self._tokens and self._tokens[-1] not in (("mark", "|"), ("mark", ")")):
            kind, token = self._tokens.pop()
            part = self._part(kind, token)
            if self._tokens and self._tokens[-1][0] == "times":
                part = (self._repeat(part, self._tokens.pop()[1]),)
            parts += part
        return tuple(parts)

    def _part(self, kind: str, token: str) -> Sequence:
        match kind:
            case "text":
                return tuple(Char(((c, c),), False) for c in _unescape(token[1:-1]))
            case "chars":
                return (_chars(token),)
            case "rule":
                return (token,)
            case _ if token == "(":
                options = self._options()
                if not self._tokens or self._tokens.pop() != ("mark", ")"):
                    raise ValueError("a group is not closed")
                return (self._new(options),)
        raise ValueError(f"{token!r} cannot stand here")

    def _new(self, options: list[Sequence]) -> str:
        name = f"({len(self.rules)})"
        self.rules[name] = options
        return name

    def _repeat(self, part: Sequence, times: str) -> str:
        counts = {"?": "0,1", "*": "0,", "+": "1,"}.get(times, times.strip("{}"))
        low, comma, high = counts.partition(",")
        if high or not comma:
            rest = self._new([()])
            for _ in range(int(high or low) - int(low)):
                rest = self._new([(*part, rest), ()])
        else:
            rest = self._new([])
            self.rules[rest] += [(*part, rest), ()]
        return self._new([(*part * int(low), rest)])


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise ValueError(f"not GBNF: {expression[at:]!r}")
        at = found.end()
        assert found.lastgroup is not None
        yield found.lastgroup, found[found.lastgroup]


def _unescape(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        return chr(int(code, 16)) if code else _NAMED.get(found[4], found[4])

    return _ESCAPE.sub(one, text)


def _chars(token: str) -> Char:
    negated = token[1] == "^"
    pieces = re.findall(r"\\x..|\\u....|\\U........|\\.|.", token[1 + negated : -1], re.DOTALL)
    ranges: list[tuple[str, str]] = []
    while pieces:
        low = _unescape(pieces.pop(0))
        if pieces[:1] == ["-"] and len(pieces) > 1:
            pieces.pop(0)
            ranges.append((low, _unescape(pieces.pop(0))))
        else:
            ranges.append((low, low))
    return Char(tuple(ranges), negated)
