"""MiniCPM5: one element for each call; a value may stand in a CDATA section."""

from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import Tagged, raw

FAMILY = Family(
    name="minicpm5",
    sample='<function name="get_weather"><param name="city">Paris</param></function>',
    tool_names=("minicpm5",),
    pairs_with="qwen3",
    models={"*minicpm5*": "qwen3"},
    marks=("<function name=", "<param name="),
    tools=Tagged(
        name=('<function name="', '">'),
        key='<param name="',
        values={
            '">': raw("</param>"),
            '"><![CDATA[': raw("]]></param>"),
            '">\n<![CDATA[': raw("]]>\n</param>", "]]></param>"),
        },
        end="</function>",
        pad="",
    ).format(),
)
