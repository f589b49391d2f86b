"""Regular expressions that match the longest of many literals.

The literals are compiled through a trie: a plain alternation of the 800 added tokens of some
vocabularies would try all of them at every `<` of a text.
"""

import re
from collections.abc import Iterable
from typing import TypeAlias

MATCH_NOTHING = re.compile(r"(?!)")
Trie: TypeAlias = "dict[str, Trie]"


def longest_literal_pattern(literals: Iterable[str], *, lone: str = "") -> re.Pattern[str]:
    """Match the longest literal. `lone` is a condition after literals of one character."""
    trie = _build_trie(literals)
    if not trie:
        return MATCH_NOTHING
    heads = [re.escape(head) + _pattern_source(rest, lone) for head, rest in sorted(trie.items())]
    return re.compile("|".join(heads))


def first_character_pattern(literals: Iterable[str]) -> re.Pattern[str]:
    """Match only the first character of a literal, so that overlapping literals are all found."""
    trie = _build_trie(literals)
    if not trie:
        return MATCH_NOTHING
    heads = [f"{re.escape(head)}(?={_pattern_source(rest)})" for head, rest in sorted(trie.items())]
    return re.compile("|".join(heads))


def proper_prefixes(literals: Iterable[str]) -> frozenset[str]:
    """Return every prefix of a literal except the empty string and the literal itself."""
    return frozenset(word[:end] for word in literals for end in range(1, len(word)))


def _build_trie(literals: Iterable[str]) -> Trie:
    root: Trie = {}
    for literal in filter(None, literals):
        node = root
        for character in literal:
            node = node.setdefault(character, {})
        node[""] = {}
    return root


def _pattern_source(node: Trie, end: str = "") -> str:
    """Return the pattern of the continuations. The end comes last: the longest literal wins."""
    branches = [
        re.escape(head) + _pattern_source(rest) for head, rest in sorted(node.items()) if head
    ]
    if "" in node:
        branches.append(end)
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
