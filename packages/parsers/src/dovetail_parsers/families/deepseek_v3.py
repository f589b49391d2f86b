"""DeepSeek-V3 and R1: typed calls with a fenced JSON object."""

from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import CallAction, Channel, Edge, Mode, ToolFormat, UnwrappedCall

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"

TOOLS = ToolFormat(
    modes={
        "text": Mode(Channel.TEXT, on={_BEGIN: Edge("section")}, tolerate={_CALL: Edge("kind")}),
        "section": Mode(Channel.GAP, on={_CALL: Edge("kind")}),
        "kind": Mode(Channel.GAP, on={"function<｜tool▁sep｜>": Edge("name")}),
        "name": Mode(Channel.NAME, on={"\n```json": Edge("args", CallAction.OPEN, pad="\n")}),
        "args": Mode(
            Channel.BODY,
            body=JsonBody(),
            tolerate={"```": Edge("end", CallAction.CLOSE)},
            end=Edge("fence", pad="\n"),
        ),
        "fence": Mode(Channel.GAP, on={"```": Edge("end")}, tolerate={_CALL_END: Edge("done")}),
        "end": Mode(Channel.GAP, on={_CALL_END: Edge("done")}),
        "done": Mode(Channel.GAP, on={_CALL: Edge("kind"), _END: Edge("text")}),
    },
    orphans=(_END, _CALL_END),
    unwrapped=UnwrappedCall("kind", (("function<｜tool▁sep｜>", "\n```json"),)),
)

FAMILY = Family(
    name="deepseek_v3",
    sample=(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        '```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    tool_names=("deepseek_v3", "deepseekv3"),
    pairs_with="deepseek_r1",
    models={"*deepseek-v3*": None, "*deepseek-r1*": "deepseek_r1"},
    template_markers=("<｜tool▁calls▁begin｜>", "```json"),
    tools=TOOLS,
)
