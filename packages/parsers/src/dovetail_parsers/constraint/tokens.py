"""Replace markers in a grammar by tokens of the vocabulary.

In many vocabularies `<tool_call>` is a token, and models are trained to generate that token; a
parser may take the same characters, spelled out, for prose. Therefore the grammar requires the
token where a marker contains one. Free text contains neither the token nor its spelling: engines
disagree on whether a token matches its characters.
"""

import re
from collections.abc import Iterable, Mapping

from dovetail_parsers.constraint.nodes import (
    EMPTY,
    Choice,
    FreeText,
    GrammarSpec,
    Marker,
    Node,
    Repeat,
    Rules,
    Sequence,
    Text,
    Token,
    choice,
    sequence,
)


def resolve_markers(spec: GrammarSpec, tokens: Mapping[str, int]) -> GrammarSpec:
    """Return the grammar without markers: tokens if the vocabulary has them, else characters."""
    resolver = _MarkerResolver(tokens)
    rules = Rules(
        {name: resolver.node(node) for name, node in spec.rules.nodes.items()}, spec.rules.notes
    )
    return GrammarSpec(resolver.node(spec.root), rules)


class _MarkerResolver:
    __slots__ = ("_known", "_tokens")

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        self._known: dict[str, tuple[Node, ...]] = {}

    def node(self, node: Node) -> Node:
        match node:
            case Marker():
                return sequence(*self._pieces(node.text))
            case Sequence():
                return _joined(map(self.node, node.parts))
            case Choice():
                return choice(*map(self.node, node.options))
            case Repeat():
                return Repeat(self.node(node.part), node.min_count, node.max_count)
            case FreeText():
                return self._free(node)
        return node

    def _pieces(self, marker: str) -> tuple[Node, ...]:
        if marker not in self._known:
            inside = sorted((t for t in self._tokens if t and t in marker), key=len, reverse=True)
            pattern = f"({'|'.join(map(re.escape, inside))})"
            self._known[marker] = tuple(
                Token(piece, self._tokens[piece]) if piece in self._tokens else Text(piece)
                for piece in (re.split(pattern, marker) if inside else [marker])
                if piece
            )
        return self._known[marker]

    def _free(self, free: FreeText) -> Node:
        """Text that ends with a token: the text without it, then the token."""
        plain = tuple(stop for stop in free.stops if self._is_plain(stop))
        if len(plain) == len(free.stops):
            return FreeText(plain, self._signs(free.never), free.not_first)
        others = tuple(stop for stop in free.stops if stop not in plain)
        before = FreeText((), self._signs((*free.stops, *free.never)), free.not_first)
        form = sequence(before, choice(*(sequence(*self._pieces(stop)) for stop in others)))
        if not plain:
            return form
        return choice(form, FreeText(plain, self._signs((*others, *free.never)), free.not_first))

    def _is_plain(self, marker: str) -> bool:
        return not any(isinstance(piece, Token) for piece in self._pieces(marker))

    def _signs(self, markers: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(self._sign, markers)))

    def _sign(self, marker: str) -> str:
        """Return what identifies a marker: the token at its start, or all of it."""
        first = self._pieces(marker)[0]
        return first.text if isinstance(first, Token) else marker


def _joined(parts: Iterable[Node]) -> Node:
    """Return one sequence, with adjacent characters joined to one literal."""
    joined: list[Node] = []
    flat = sequence(*parts)
    for part in flat.parts if isinstance(flat, Sequence) else (flat,):
        last = joined[-1] if joined else EMPTY
        if isinstance(part, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + part.text)
        else:
            joined.append(part)
    return sequence(*joined)
