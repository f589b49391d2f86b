"""Dots: MiniMax-M2's format with its own section tags."""

from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import TaggedFormat, raw_value

FAMILY = Family(
    name="dots",
    sample=(
        '<dots_function_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Paris</parameter>\n</invoke>\n</dots_function_call>'
    ),
    tool_names=("dots",),
    pairs_with="dots",
    models={"*dots*llm*": "dots", "*dots.*": "dots"},
    template_markers=("<dots_function_call>",),
    tools=TaggedFormat(
        section=("<dots_function_call>", "</dots_function_call>"),
        name=('<invoke name="', '">'),
        key='<parameter name="',
        values={'">': raw_value("</parameter>")},
        end="</invoke>",
        many=True,
    ).to_tool_format(),
)
