"""Grammars that clients write as named rules: convert their tokens to nodes."""

from collections.abc import Mapping, Sequence

from dovetail_parsers.constraint.nodes import (
    Choice,
    Node,
    Ref,
    Repeat,
    Rules,
    choice,
    repeat,
    sequence,
)
from dovetail_parsers.constraint.nodes import Sequence as NodeSequence
from dovetail_parsers.constraint.pattern import (
    UnsupportedPattern,
    check_group_depth,
    may_be_empty,
)

#: The kind of a token, and its text. Groups and alternatives have the kind `mark`.
GrammarToken = tuple[str, str]

_COUNTS: Mapping[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}


class RuleGrammar:
    """Rules by name, each a list of tokens. Subclasses read the tokens of their notation."""

    __slots__ = ("_definitions", "_depth", "_names", "_nodes", "_rules", "_tokens")

    def __init__(self, definitions: Mapping[str, Sequence[GrammarToken]], rules: Rules) -> None:
        self._definitions = definitions
        self._rules = rules
        self._names: dict[str, str] = {}
        self._nodes: dict[str, Node] = {}
        self._tokens: list[GrammarToken] = []
        self._depth = 0

    def build(self, start: str) -> Node:
        """Return the grammar of the rule `start`. Left recursion is not supported."""
        form = self.named(start)
        if _has_cycle({name: _firsts(node) for name, node in self._nodes.items()}):
            raise UnsupportedPattern("left recursion is not supported")
        return form

    def terminal(self, kind: str, token: str) -> Node:
        """Return the node of a token that is neither a name nor a mark."""
        raise UnsupportedPattern

    def named(self, name: str) -> Node:
        if name not in self._definitions:
            raise UnsupportedPattern(f"there is no rule named {name!r}")
        if name not in self._names:
            rule = self._names[name] = self._rules.reserve("rule")
            saved, self._tokens = self._tokens, list(self._definitions[name])[::-1]
            depth, self._depth = self._depth, 0
            node = self._options()
            if self._tokens:
                raise UnsupportedPattern(f"unexpected {self._tokens[-1][1]!r}")
            self._tokens, self._depth = saved, depth
            self._nodes[rule] = node
            self._rules.define(rule, node)
        return Ref(self._names[name])

    def counts(self, token: str) -> tuple[int, int | None]:
        """Return how often the part before a token of the kind `times` is repeated."""
        return _COUNTS[token]

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
                min_count, max_count = self.counts(self._tokens.pop()[1])
                if may_be_empty(part) and max_count is None:
                    raise UnsupportedPattern("a repeated part must not be empty")
                part = repeat(part, min_count, max_count)
            parts.append(part)
        return sequence(*parts)

    def _part(self, kind: str, token: str) -> Node:
        if kind == "name":
            return self.named(token)
        if kind == "mark" and token in "([":
            self._depth += 1
            check_group_depth(self._depth)
            inner = self._options()
            self._depth -= 1
            if not self._tokens or self._tokens.pop() != ("mark", ")" if token == "(" else "]"):
                raise UnsupportedPattern("a bracket is not closed")
            return repeat(inner, 0, 1) if token == "[" else inner
        return self.terminal(kind, token)


def _has_cycle(targets: Mapping[str, set[str]]) -> bool:
    """Return whether any rule leads back to itself: without a cycle, all rules can be ordered."""
    users = dict.fromkeys(targets, 0)
    for names in targets.values():
        for name in names:
            users[name] += 1
    ordered = [name for name, count in users.items() if not count]
    for name in ordered:  # grows: a rule follows once all rules that lead to it are in the order
        for target in targets[name]:
            users[target] -= 1
            if not users[target]:
                ordered.append(target)
    return len(ordered) < len(targets)


def _firsts(node: Node) -> set[str]:
    """Return the rules that a text of this node may start with directly."""
    found: set[str] = set()
    todo = [node]
    while todo:
        match todo.pop():
            case Ref(rule=rule):
                found.add(rule)
            case Repeat(part=part):
                todo.append(part)
            case Choice(options=options):
                todo += options
            case NodeSequence(parts=parts):
                for part in parts:
                    todo.append(part)
                    if not may_be_empty(part):
                        break
    return found
