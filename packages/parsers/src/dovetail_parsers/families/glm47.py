"""GLM-4.5 to GLM-5, Ling 3, Poolside Laguna: the name, then pairs of key and value."""

from dovetail_parsers.family import Family
from dovetail_parsers.grammar import CallAction, Channel, Edge, Mode, ToolFormat, UnwrappedCall

TOOLS = ToolFormat(
    modes={
        "text": Mode(Channel.TEXT, on={"<tool_call>": Edge("name")}),
        "name": Mode(
            Channel.NAME,
            on={
                "<arg_key>": Edge("key", CallAction.OPEN),
                "</tool_call>": Edge("text", CallAction.OPEN | CallAction.CLOSE),
            },
        ),
        "key": Mode(Channel.KEY, on={"</arg_key>": Edge("between")}),
        "between": Mode(Channel.GAP, on={"<arg_value>": Edge("value")}),
        "value": Mode(Channel.VALUE, on={"</arg_value>": Edge("args")}),
        "args": Mode(
            Channel.GAP,
            on={"<arg_key>": Edge("key"), "</tool_call>": Edge("text", CallAction.CLOSE)},
            tolerate={"<tool_call>": Edge("name", CallAction.CLOSE)},
        ),
    },
    orphans=("</tool_call>",),
    unwrapped=UnwrappedCall("name", (("", "<arg_key>"), ("", "\n<arg_key>"), ("", "</tool_call>"))),
)

FAMILY = Family(
    name="glm47",
    sample=(
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
    ),
    tool_names=("glm47", "glm45", "glm", "ling3", "poolside_v1"),
    pairs_with="glm45",
    models={
        "*glm-4.5*": "glm45",
        "*glm-4.6*": "glm45",
        "*glm-4.7*": "glm45",
        "*glm-5*": "glm45",
        "*ling-3*": "ling3",
        "*laguna*": "poolside_v1",
        "*poolside*": "poolside_v1",
    },
    template_markers=("<arg_key>", "<arg_value>"),
    tools=TOOLS,
)
