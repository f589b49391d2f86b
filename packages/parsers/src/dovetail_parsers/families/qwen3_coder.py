"""Qwen3-Coder, Qwen3.5, Nemotron 3, MiMo, Step 3.5: tags with raw values on separate lines.

Models sometimes omit the wrapper.
"""

from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import TaggedFormat, raw_value

VALUE = raw_value("\n</parameter>", "</parameter>")

FAMILY = Family(
    name="qwen3_coder",
    sample=(
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "</function>\n</tool_call>"
    ),
    tool_names=("qwen3_coder", "qwen3_xml", "nemotron_nano", "mimo", "step3p5"),
    pairs_with="qwen3",
    models={
        "*qwen3-coder*": None,
        "*qwen3.5*": "qwen3",
        "*qwen3.6*": "qwen3",
        "*nemotron-3*": "nemotron_v3",
        "*nemotron-3-super*": "nemotron_deci",
        "*mimo-v2*": "mimo",
        "*step-3.5*": "step3p5",
        "*stepfun3.5*": "step3p5",
    },
    template_markers=("<function=", "<parameter=", "<tool_call>"),
    tools=TaggedFormat(
        section=("<tool_call>", "</tool_call>"),
        name=("<function=", ">"),
        key="<parameter=",
        values={">\n": VALUE, ">": VALUE},
        end="</function>",
    ).to_tool_format(),
)
