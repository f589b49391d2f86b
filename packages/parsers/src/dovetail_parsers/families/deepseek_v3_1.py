"""DeepSeek-V3.1: name, separator, JSON object."""

from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import CallAction, Channel, Edge, Mode, ToolFormat, UnwrappedCall

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"

TOOLS = ToolFormat(
    modes={
        "text": Mode(Channel.TEXT, on={_BEGIN: Edge("section")}, tolerate={_CALL: Edge("name")}),
        "section": Mode(Channel.GAP, on={_CALL: Edge("name")}),
        "name": Mode(Channel.NAME, on={"<｜tool▁sep｜>": Edge("args", CallAction.OPEN)}),
        "args": Mode(
            Channel.BODY,
            body=JsonBody(),
            tolerate={_CALL_END: Edge("done", CallAction.CLOSE)},
            end=Edge("end"),
        ),
        "end": Mode(
            Channel.GAP,
            on={_CALL_END: Edge("done")},
            tolerate={_CALL: Edge("name"), _END: Edge("text")},
        ),
        "done": Mode(Channel.GAP, on={_CALL: Edge("name"), _END: Edge("text")}),
    },
    orphans=(_END, _CALL_END),
    unwrapped=UnwrappedCall("name", (("", "<｜tool▁sep｜>"),)),
)

FAMILY = Family(
    name="deepseek_v3_1",
    sample=(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    tool_names=("deepseek_v3_1", "deepseek_v31", "deepseekv31"),
    pairs_with="deepseek_v3_1",
    models={"*deepseek-v3.1*": "deepseek_v3_1"},
    template_markers=("<｜tool▁calls▁begin｜>",),
    tools=TOOLS,
)
