"""Hunyuan-A13B: reasoning in `<think>`, visible text in a separate element."""

from dovetail_parsers.family import Family
from dovetail_parsers.grammar import ReasoningFormat

FAMILY = Family(
    name="hunyuan_a13b",
    sample="<think>\nThe user wants the weather.\n</think>\n<answer>\nIt is sunny.\n</answer>",
    reasoning_names=("hunyuan_a13b",),
    template_markers=("</think>", "<answer>"),
    reasoning=ReasoningFormat(
        openers=("<think>",),
        closers=("</think>",),
        pads=("\n", "\n", "\n"),
        frames=("<answer>", "</answer>"),
    ),
)
