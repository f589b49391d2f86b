"""Grammars of outputs, before they are written in an engine's notation.

A grammar is context-free, with two additions that engines write differently: text up to a marker,
and literals that are markers (special tokens in many vocabularies). All nodes are frozen values, so
equal parts are written once.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from dovetail_parsers.constraint.limits import MAX_REQUEST_STEPS, StepBudget


@dataclass(frozen=True, slots=True)
class Text:
    """Literal characters."""

    text: str


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker of the family: literal characters, possibly a special token."""

    text: str


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the vocabulary by its id, which does not match its spelling in characters."""

    text: str
    id: int


@dataclass(frozen=True, slots=True)
class Chars:
    """One character in these ranges, or outside of them if negated."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    options: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """`max_count` is None if there is no limit."""

    part: "Node"
    min_count: int
    max_count: int | None


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a rule by its name."""

    rule: str


@dataclass(frozen=True, slots=True)
class FreeText:
    """Any text up to and including the first of `stops`, without any of `never` in it.

    Without `stops` it may end anywhere. It does not start with a character of `not_first`.
    """

    stops: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    not_first: str = ""


Node = Text | Marker | Token | Chars | Sequence | Choice | Repeat | Ref | FreeText

EMPTY = Sequence(())


@dataclass(frozen=True)
class GrammarSpec:
    """The grammar of an output: `root`, and the rules that it refers to."""

    root: Node
    rules: "Rules"


@dataclass
class Rules:
    """Rules by name. Equal content gets the same name.

    `notes` list requested constraints that could not be expressed, each once, for the client.
    `budget` bounds the work on the schemas of the request.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    budget: StepBudget = field(default_factory=lambda: StepBudget(MAX_REQUEST_STEPS))
    _names: dict[Node, str] = field(default_factory=dict)

    def share(self, hint: str, node: Node) -> Node:
        """Return a reference to a rule with this content; small parts are inlined."""
        if isinstance(node, Text | Marker | Token | Chars | Ref) or node == EMPTY:
            return node
        name = self._names.get(node)
        if name is None:
            name = self._names[node] = self.reserve(hint)
            self.nodes[name] = node
        return Ref(name)

    def note(self, what: str) -> None:
        self.notes[what] = None

    def reserve(self, hint: str) -> str:
        """Return a new name, for a rule that refers to itself."""
        name = f"{hint}-{len(self.nodes)}"
        self.nodes[name] = EMPTY
        return name

    def define(self, name: str, node: Node) -> Node:
        self.nodes[name] = node
        return Ref(name)

    def define_once(self, name: str, build: Callable[[], Node]) -> Node:
        """Return the rule of this name, built on first use. It may refer to itself."""
        if name not in self.nodes:
            self.nodes[name] = EMPTY
            self.define(name, build())
        return Ref(name)


def sequence(*parts: Node) -> Node:
    flat = tuple(_flatten(parts))
    return flat[0] if len(flat) == 1 else Sequence(flat)


def _flatten(parts: Iterable[Node]) -> Iterator[Node]:
    for part in parts:
        if isinstance(part, Sequence):
            yield from part.parts
        else:
            yield part


def choice(*options: Node) -> Node:
    """Return one of these options, without duplicates, in the given order."""
    flat: dict[Node, None] = {}
    for option in options:
        flat |= dict.fromkeys(option.options if isinstance(option, Choice) else (option,))
    return next(iter(flat)) if len(flat) == 1 else Choice(tuple(flat))


def optional(part: Node) -> Node:
    return part if part == EMPTY else Repeat(part, 0, 1)


def repeat(part: Node, min_count: int = 0, max_count: int | None = None) -> Node:
    return Repeat(part, min_count, max_count)


def text(characters: str) -> Node:
    return Text(characters) if characters else EMPTY


def marker(characters: str) -> Node:
    return Marker(characters) if characters else EMPTY


def any_of(characters: str) -> Chars:
    return Chars(tuple((char, char) for char in characters))


def non_empty_text(never: tuple[str, ...], not_first: str = "") -> Node:
    """Non-empty text without any of `never`, not starting with a character of `not_first`.

    If it starts like a forbidden text, the second character decides that it is not one.
    """
    starts = "".join(dict.fromkeys(marker[0] for marker in never))
    seconds = "".join(dict.fromkeys(marker[1:2] for marker in never))
    ends = "".join(marker for marker in never if len(marker) == 1)
    risky = "".join(char for char in starts if char not in not_first + ends)
    rest = FreeText(never=never)
    plain = sequence(_none_of(not_first + starts), rest)
    if not risky:
        return plain
    return choice(plain, sequence(any_of(risky), _none_of(starts + seconds), rest))


def _none_of(chars: str) -> Chars:
    """Exclude characters; an empty set excludes a character that never occurs instead."""
    return Chars(tuple((char, char) for char in dict.fromkeys(chars or "\0")), negated=True)
