"""`<think>` for models that reason from the first token: their prompt contains the opener."""

from dovetail_parsers.family import Family
from dovetail_parsers.grammar import ReasoningFormat

FAMILY = Family(
    name="deepseek_r1",
    sample="The user wants the weather.\n</think>\n\nIt is sunny.",
    reasoning_names=(
        "deepseek_r1",
        "deepseek-r1",
        "deepseek_v3",
        "deepseek-v3",
        "deepseek_v3_1",
        "deepseek_v3_2",
        "kimi_k25",
        "minimax",
        "minimax_append_think",
        "minimax-append-think",
        "minimax_m2",
        "nemotron3",
        "nemotron_3",
        "nemotron_nano",
        "nemotron_v3",
        "qwen3-thinking",
        "step3",
    ),
    reasoning=ReasoningFormat(
        openers=("<think>",),
        closers=("</think>",),
        starts_inside=True,
        pads=("\n", "\n", "\n\n"),
    ),
)
