"""DeepSeek-V3.2: DSML tags that say whether a value is a string. The blank line is framing."""

from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, ToolFormat
from dovetail_parsers.shared_formats import Tagged

_CLOSER = ("</｜DSML｜parameter>",)


def dsml(section: str) -> ToolFormat:
    """The format of the DSML models, which name their section differently."""
    return Tagged(
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
    ).format()


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
    marks=("DSML｜", "function_calls"),
    tools=dsml("function_calls"),
)
