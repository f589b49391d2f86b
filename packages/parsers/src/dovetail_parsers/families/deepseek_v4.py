"""DeepSeek-V4: the DSML of V3.2 with another section name."""

from dovetail_parsers.families.deepseek_v3_2 import dsml_format
from dovetail_parsers.family import Family

FAMILY = Family(
    name="deepseek_v4",
    sample=(
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    ),
    tool_names=("deepseek_v4", "deepseekv4"),
    pairs_with="deepseek_v4",
    models={"*deepseek-v4*": "deepseek_v4"},
    template_markers=("DSML｜", "tool_calls>"),
    tools=dsml_format("tool_calls"),
)
