"""Paths through a family's table as grammars: the writer's paths, with gaps for values."""

from collections.abc import Callable, Mapping

from dovetail_model import Unsupported
from dovetail_parsers.constraint.nodes import (
    EMPTY,
    Chars,
    Node,
    marker,
    optional,
    repeat,
    sequence,
    text,
)
from dovetail_parsers.grammar import CallAction, Channel, Edge, Mode
from dovetail_parsers.writer import shortest_path

Spell = Callable[[str, int], str]

_DIGIT = Chars((("0", "9"),))
_OWN_ID = repeat(Chars((("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"), ("-", "-"))))

#: A number that only the model knows: how many calls it has made.
CALL_COUNT = repeat(_DIGIT, 1, 4)


class TableWalk:
    """The modes of one table. `lead` is the white space before a call that follows another."""

    __slots__ = ("_family", "_lead", "modes")

    def __init__(self, family: str, modes: Mapping[str, Mode], lead: str) -> None:
        self._family = family
        self._lead = optional(text(lead)) if lead else EMPTY
        self.modes = modes

    def path_to(
        self, start: str, goal: Callable[[Mode], bool], until: CallAction = CallAction.NONE
    ) -> tuple[Node, str]:
        """Return the shortest path to a mode, or across an edge with an action, and its end."""
        way = shortest_path(self.modes, start, goal, until)
        if way is None:
            raise Unsupported(
                f"guided decoding of {self._family} calls: no path from mode {start!r}"
            )
        parts: list[Node] = []
        at = start
        for mark, edge in way:
            parts += [self._before(at), edge_grammar(mark, edge)]
            at = edge.mode
        return sequence(*parts), at

    def _before(self, at: str) -> Node:
        """Return what the writer writes in a mode before leaving it."""
        mode = self.modes[at]
        if mode.channel is Channel.TEXT:
            return self._lead
        if mode.channel is Channel.ID:
            return _OWN_ID
        if mode.channel is Channel.ATTRIBUTE and mode.spell is not None:
            return spelled_grammar(mode.spell, "")
        return EMPTY


def edge_grammar(mark: str, edge: Edge) -> Node:
    """Return an edge as written: its marker, unless the next mode reads it, and its padding."""
    return sequence(EMPTY if edge.peek else marker(mark), text(edge.pad))


def spelled_grammar(spell: Spell | None, word: str) -> Node:
    """Return a word as its mode spells it, with any number where the writer counts calls."""
    if spell is None:
        return text(word)
    one, two = spell(word, 1), spell(word, 2)
    if one == two:
        return text(one)
    at = next(i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)
    return sequence(text(one[:at]), CALL_COUNT, text(one[at + 1 :]))
