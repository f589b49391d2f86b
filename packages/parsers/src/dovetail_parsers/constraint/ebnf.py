"""Grammars in xgrammar's EBNF: GBNF with tokens by id, and with a keyword for free text.

A token also matches its characters there, so free text must not contain a marker's spelling.
"""

import json

from dovetail_parsers.constraint.bnf import RuleWriter, quoted
from dovetail_parsers.constraint.nodes import (
    EMPTY,
    FreeText,
    GrammarSpec,
    Node,
    Token,
    choice,
    non_empty_text,
    sequence,
    text,
)


def write_ebnf(spec: GrammarSpec) -> str:
    return _EbnfWriter(spec).text()


class _EbnfWriter(RuleWriter):
    def token(self, token: Token) -> str:
        """Add a rule for a token, with a second, unreachable alternative that spells the id.

        The engine (0.2.8) caches masks of rules by their structure, regardless of their tokens, and
        reuses them for later grammars: rules of different tokens must therefore differ.
        """
        name = f"token-{token.id}"
        self.lines["never"] = r"[^\u0000-\U0010FFFF]"
        self.lines[name] = f'Token({token.id}) | Token({token.id}) never "{token.id}"'
        return name

    def free(self, name: str, free: FreeText) -> str:
        if free.stops or free.not_first:
            self.lines[name] = ""
            self.lines[name] = self.expression(_split_at_stop(free))
        else:
            excludes = ", ".join(map(quoted, free.never))
            rest = f", excludes=({excludes})" if excludes else ""
            self.lines[name] = f"TagDispatch(loop_after_dispatch=false{rest})"
        return name


def _split_at_stop(free: FreeText) -> Node:
    """Text without a stop, followed by a stop."""
    never = dict.fromkeys((*map(_non_overlapping, free.stops), *free.never))
    body: Node = FreeText(never=tuple(never))
    if free.not_first:
        body = choice(EMPTY, non_empty_text(tuple(never), free.not_first))
    return sequence(body, choice(*map(text, free.stops))) if free.stops else body


def _non_overlapping(stop: str) -> str:
    """Return the stop, or its beginning if it ends as it starts: two stops must not overlap."""
    border = next((n for n in range(len(stop) - 1, 0, -1) if stop.endswith(stop[:n])), 0)
    return stop[: len(stop) - border]


def write_structural_tag(spec: GrammarSpec) -> str:
    grammar = {"type": "grammar", "grammar": write_ebnf(spec)}
    return json.dumps({"type": "structural_tag", "format": grammar}, ensure_ascii=False)
