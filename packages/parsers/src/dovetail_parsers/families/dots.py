"""Dots: MiniMax-M2's form under its own section tags."""

from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import Tagged, raw

FAMILY = Family(
    name="dots",
    sample=(
        '<dots_function_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Paris</parameter>\n</invoke>\n</dots_function_call>'
    ),
    tool_names=("dots",),
    pairs_with="dots",
    models={"*dots*llm*": "dots", "*dots.*": "dots"},
    marks=("<dots_function_call>",),
    tools=Tagged(
        section=("<dots_function_call>", "</dots_function_call>"),
        name=('<invoke name="', '">'),
        key='<parameter name="',
        values={'">': raw("</parameter>")},
        end="</invoke>",
        many=True,
    ).format(),
)
