"""MiniCPM5: one element per call; a value may be a CDATA section."""

from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import TaggedFormat, raw_value

FAMILY = Family(
    name="minicpm5",
    sample='<function name="get_weather"><param name="city">Paris</param></function>',
    tool_names=("minicpm5",),
    pairs_with="qwen3",
    models={"*minicpm5*": "qwen3"},
    template_markers=("<function name=", "<param name="),
    tools=TaggedFormat(
        name=('<function name="', '">'),
        key='<param name="',
        values={
            '">': raw_value("</param>"),
            '"><![CDATA[': raw_value("]]></param>"),
            '">\n<![CDATA[': raw_value("]]>\n</param>", "]]></param>"),
        },
        end="</function>",
        pad="",
    ).to_tool_format(),
)
