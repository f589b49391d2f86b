"""DeepSeek-V3.2: DSML tags that state whether a value is a string. The blank line is framing."""

from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, ToolFormat
from dovetail_parsers.shared_formats import TaggedFormat

_CLOSER = ("</｜DSML｜parameter>",)


def dsml_format(section: str) -> ToolFormat:
    """Return the format of the DSML models, which use different section names."""
    return TaggedFormat(
        section=(f"<｜DSML｜{section}>", f"</｜DSML｜{section}>"),
        name=('<｜DSML｜invoke name="', '">'),
        key='<｜DSML｜parameter name="',
        values={
            '" string="true">': (Channel.STRING, _CLOSER),
            '" string="false">': (Channel.LITERAL, _CLOSER),
            '">': (Channel.VALUE, _CLOSER),
        },
        end="</｜DSML｜invoke>",
        many=True,
        lead="\n\n",
        strays=("</｜DSML｜invoke>", *_CLOSER),
    ).to_tool_format()


FAMILY = Family(
    name="deepseek_v3_2",
    sample=(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    tool_names=("deepseek_v3_2", "deepseek_v32", "deepseekv32"),
    pairs_with="deepseek_v3_2",
    models={"*deepseek-v3.2*": "deepseek_v3_2"},
    template_markers=("DSML｜", "function_calls"),
    tools=dsml_format("function_calls"),
)
