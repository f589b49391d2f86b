"""Members in a fixed order, some of which may be left out: keys of an object, parameters."""

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
    """What stands around members: before the first, between two, behind the last, and alone."""

    first: Node = EMPTY
    between: Node = EMPTY
    end: Node = EMPTY
    empty: Node = EMPTY


def ordered_members(members: list[ObjectMember], frame: MemberDelimiters, rules: Rules) -> Node:
    """The members in their order. The size grows with their number, not with its square."""
    starts: list[Node] = []
    must = next((i for i, member in enumerate(members) if member.required), len(members))
    rests = _rests(members, frame, rules)
    for i, member in enumerate(members[: must + 1]):
        starts.append(sequence(frame.first, member.form, rests[i + 1]))
    if must == len(members):
        starts.append(frame.empty)
    return choice(*starts)


def _rests(members: list[ObjectMember], frame: MemberDelimiters, rules: Rules) -> list[Node]:
    """For each place, what may follow from there on once something stands before it.

    The end is part of it: an engine that reads terminals must see it next to a member that may be
    left out, or it takes the beginning that they have in common for that member's.
    """
    rest = frame.end
    rests = [rest]
    for member in reversed(members):
        one = sequence(frame.between, member.form)
        rest = rules.share("rest", sequence(one if member.required else optional(one), rest))
        rests.append(rest)
    return rests[::-1]
