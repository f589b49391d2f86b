"""Constraints in the form of vLLM's `structured_outputs`."""

from collections.abc import Mapping

from dovetail.engines.engine import Constraint, ConstraintSyntax
from dovetail_model import Unsupported

#: The field of `structured_outputs` for each constraint syntax.
CONSTRAINT_FIELDS: Mapping[ConstraintSyntax, str] = {
    "structural_tag": "structural_tag",
    "json_schema": "json",
    "ebnf": "grammar",
    "gbnf": "grammar",
    "lark": "grammar",
}


def constraint_field(constraint: Constraint) -> dict[str, str]:
    """Return the value of `structured_outputs`. Raise `Unsupported` for an unknown syntax."""
    member = CONSTRAINT_FIELDS.get(constraint.syntax)
    if member is None:
        raise Unsupported(f"{constraint.syntax} constraints are not supported here")
    return {member: constraint.text}
