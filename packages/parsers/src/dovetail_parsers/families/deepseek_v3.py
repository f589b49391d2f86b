"""DeepSeek-V3 and R1: typed calls with a fenced JSON object."""

from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Act, Channel, Mode, To, ToolFormat

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"

TOOLS = ToolFormat(
    modes={
        "text": Mode(Channel.TEXT, on={_BEGIN: To("section")}, tolerate={_CALL: To("kind")}),
        "section": Mode(Channel.GAP, on={_CALL: To("kind")}),
        "kind": Mode(Channel.GAP, on={"function<｜tool▁sep｜>": To("name")}),
        "name": Mode(Channel.NAME, on={"\n```json": To("args", Act.OPEN, pad="\n")}),
        "args": Mode(
            Channel.BODY,
            body=JsonBody(),
            tolerate={"```": To("end", Act.CLOSE)},
            end=To("fence", pad="\n"),
        ),
        "fence": Mode(Channel.GAP, on={"```": To("end")}, tolerate={_CALL_END: To("done")}),
        "end": Mode(Channel.GAP, on={_CALL_END: To("done")}),
        "done": Mode(Channel.GAP, on={_CALL: To("kind"), _END: To("text")}),
    },
    orphans=(_END, _CALL_END),
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
    marks=("<｜tool▁calls▁begin｜>", "```json"),
    tools=TOOLS,
)
