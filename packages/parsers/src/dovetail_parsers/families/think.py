"""Reasoning between `<think>` tags, the most common form. The prompt may contain the opener."""

from dovetail_parsers.family import Family
from dovetail_parsers.grammar import ReasoningFormat

FAMILY = Family(
    name="qwen3",
    sample="<think>\nThe user wants the weather.\n</think>\n\nIt is sunny.",
    reasoning_names=(
        "qwen3",
        "basic",
        "deepseek_v4",
        "deepseek-v4",
        "dots",
        "glm45",
        "glm47",
        "holo2",
        "interns1",
        "kimi_k2",
        "ling3",
        "mimo",
        "nemotron_deci",
        "olmo3",
        "poolside_v1",
        "step3p5",
    ),
    template_markers=("</think>",),
    reasoning=ReasoningFormat(
        openers=("<think>",), closers=("</think>",), pads=("\n", "\n", "\n\n")
    ),
)
