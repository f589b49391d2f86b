"""Seed-OSS: Qwen3-Coder's format with its own wrapper and reasoning tags."""

from dovetail_parsers.family import Family
from dovetail_parsers.grammar import ReasoningFormat
from dovetail_parsers.shared_formats import TaggedFormat, raw_value

FAMILY = Family(
    name="seed_oss",
    sample=(
        "<seed:think>The user wants the weather.</seed:think>\n<seed:tool_call>\n"
        "<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n"
        "</seed:tool_call>"
    ),
    tool_names=("seed_oss",),
    reasoning_names=("seed_oss",),
    pairs_with="seed_oss",
    models={"*seed-oss*": "seed_oss"},
    template_markers=("<seed:tool_call>",),
    tools=TaggedFormat(
        section=("<seed:tool_call>", "</seed:tool_call>"),
        name=("<function=", ">"),
        key="<parameter=",
        values={">": raw_value("</parameter>")},
        end="</function>",
    ).to_tool_format(),
    reasoning=ReasoningFormat(
        openers=("<seed:think>",), closers=("</seed:think>",), pads=("", "", "\n")
    ),
)
