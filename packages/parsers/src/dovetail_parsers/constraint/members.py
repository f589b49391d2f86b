"""Members in a fixed order, some of them optional: keys of an object, or parameters."""

from dataclasses import dataclass

from dovetail_parsers.constraint.nodes import (
    EMPTY,
    Node,
    Rules,
    choice,
    optional,
    sequence,
)


@dataclass(frozen=True)
class ObjectMember:
    form: Node
    required: bool


@dataclass(frozen=True)
class MemberDelimiters:
    """Delimiters: before the first member, between two, after the last, and without members."""

    first: Node = EMPTY
    between: Node = EMPTY
    end: Node = EMPTY
    empty: Node = EMPTY


def ordered_members(members: list[ObjectMember], frame: MemberDelimiters, rules: Rules) -> Node:
    """Return the members in order. The size is linear in their number, not quadratic."""
    starts: list[Node] = []
    must = next((i for i, member in enumerate(members) if member.required), len(members))
    rests = _rests(members, frame, rules)
    for i, member in enumerate(members[: must + 1]):
        starts.append(sequence(frame.first, member.form, rests[i + 1]))
    if must == len(members):
        starts.append(frame.empty)
    return choice(*starts)


def _rests(members: list[ObjectMember], frame: MemberDelimiters, rules: Rules) -> list[Node]:
    """Return for each position what may follow, once a member precedes it.

    The end is included: an engine that matches terminals must see it next to an optional member,
    otherwise it takes their common prefix for the member's.
    """
    rest = frame.end
    rests = [rest]
    for member in reversed(members):
        one = sequence(frame.between, member.form)
        rest = rules.share("rest", sequence(one if member.required else optional(one), rest))
        rests.append(rest)
    return rests[::-1]
