"""Random outputs under a matcher's masks, and the parser's events for them."""

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from grammar_matchers import Matcher
from vocabularies import Vocabulary, encode

from dovetail_model import Event, ToolSpec
from dovetail_parsers import Parser, markers
from dovetail_parsers.family import Family

_LONGEST = 600
_HOME = ('"', "}", "]", "{", "[", ")", "\n", ",", ":", "1", "a", '<|"|>', "<escape>", "</input>")


def walk(
    found: Matcher, family: Family, vocabulary: Vocabulary, random: Random
) -> list[int] | None:
    """Return tokens up to a position where the output may end; None if none is found."""
    names = markers(family.tool_parser, family.reasoning_parser)
    own = {id for spelling, id in vocabulary.controls.items() if any(spelling in m for m in names)}
    strange = frozenset(vocabulary.controls.values()) - own
    pieces = [encode(text, vocabulary) for text in (*sorted(names), *_HOME)]
    ids: list[int] = []
    wandering = random.randrange(30)
    plan: list[int] = []
    while len(ids) < _LONGEST:
        if found.may_end() and (len(ids) > wandering or random.random() < 0.2):
            return ids
        mask = found.allowed()
        if not plan and len(ids) >= wandering:
            plan = _home(found, pieces, random)
        id = plan.pop(0) if plan else None
        if id is None or id not in mask:
            plan = []
            id = mask.choose(random, strange)
        if id is None and found.may_end():
            return ids
        assert id is not None, "nothing may come next, and it may not end"
        assert found.take(id), "a token of the mask is refused"
        ids.append(id)
    return None


def _home(found: Matcher, pieces: list[list[int]], random: Random) -> list[int]:
    """Return the allowed part of a marker or of a value's closer."""
    mask = found.allowed()
    ways = [piece for piece in pieces if piece and piece[0] in mask]
    return list(random.choice(ways)) if ways else []


def read(
    ids: Iterable[int],
    family: Family,
    vocabulary: Vocabulary,
    tools: Sequence[ToolSpec | Mapping[str, Any]],
    inside: bool = False,
) -> list[Event]:
    """Return the events of these tokens, fed as the application does."""
    known = markers(family.tool_parser, family.reasoning_parser)
    special = frozenset(m for m in known if any(c in m for c in vocabulary.controls))
    parser = Parser(
        family.tool_parser,
        family.reasoning_parser,
        tools=tools,
        in_reasoning=inside,
        special=special,
    )
    controls = frozenset(vocabulary.controls.values())
    events: list[Event] = []
    plain = b""
    for id in ids:
        if id not in controls:
            plain += vocabulary.spellings[id]
            continue
        events += parser.feed(plain.decode("utf-8", "replace"), False)
        events += parser.feed(vocabulary.spellings[id].decode(), True)
        plain = b""
    events += parser.feed(plain.decode("utf-8", "replace"), False)
    return events + parser.finish()
