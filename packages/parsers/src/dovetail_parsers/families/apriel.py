"""Apriel: reasoning announced by a sentence, closed by a bracketed line."""

from dovetail_parsers.family import Family
from dovetail_parsers.grammar import ReasoningFormat

FAMILY = Family(
    name="apriel",
    sample=(
        "Here are my reasoning steps:\nThe user wants the weather.\n"
        "[BEGIN FINAL RESPONSE]\nIt is sunny."
    ),
    reasoning_names=("apriel",),
    template_markers=("[BEGIN FINAL RESPONSE]",),
    reasoning=ReasoningFormat(
        openers=("Here are my reasoning steps:",),
        closers=("[BEGIN FINAL RESPONSE]",),
        pads=("\n", "\n", "\n"),
        frames=("[END FINAL RESPONSE]",),
        starts_inside=True,
    ),
)
