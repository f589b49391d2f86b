"""MiniMax-M2: one section of invocations with named parameters."""

from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import TaggedFormat, raw_value

FAMILY = Family(
    name="minimax_m2",
    sample=(
        '<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Paris</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    tool_names=("minimax_m2", "minimax-m2"),
    pairs_with="minimax_m2",
    models={"*minimax-m2*": "minimax_m2"},
    template_markers=("<minimax:tool_call>",),
    tools=TaggedFormat(
        section=("<minimax:tool_call>", "</minimax:tool_call>"),
        name=('<invoke name="', '">'),
        key='<parameter name="',
        values={'">': raw_value("</parameter>")},
        end="</invoke>",
        many=True,
    ).to_tool_format(),
)
