"""Solar Open: a section of calls, each with its id, name and a JSON object."""

from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import CallAction, Channel, Edge, Mode, ReasoningFormat, ToolFormat

_CALL, _CALL_END = "<|tool_call:begin|>", "<|tool_call:end|>"

FAMILY = Family(
    name="solar",
    sample=(
        "<|tool_calls|><|tool_call:begin|>call_1<|tool_call:name|>get_weather"
        '<|tool_call:args|>{"city": "Paris"}<|tool_call:end|><|calls|>'
    ),
    tool_names=("solar",),
    reasoning_names=("solar",),
    pairs_with="solar",
    models={"*solar-open*": "solar"},
    template_markers=("<|tool_call:begin|>",),
    tools=ToolFormat(
        modes={
            "text": Mode(
                Channel.TEXT, on={"<|tool_calls|>": Edge("section")}, tolerate={_CALL: Edge("id")}
            ),
            "section": Mode(Channel.GAP, on={_CALL: Edge("id")}),
            "id": Mode(Channel.ID, on={"<|tool_call:name|>": Edge("name")}),
            "name": Mode(Channel.NAME, on={"<|tool_call:args|>": Edge("args", CallAction.OPEN)}),
            "args": Mode(
                Channel.BODY,
                body=JsonBody(),
                tolerate={_CALL_END: Edge("done", CallAction.CLOSE)},
                end=Edge("end"),
            ),
            "end": Mode(Channel.GAP, on={_CALL_END: Edge("done")}),
            "done": Mode(Channel.GAP, on={_CALL: Edge("id"), "<|calls|>": Edge("text")}),
        },
        orphans=("<|calls|>",),
    ),
    reasoning=ReasoningFormat(
        openers=("<|think|>",),
        closers=("<|end|>",),
        frames=("<|begin|>assistant<|content|>", "<|begin|>assistant", "<|content|>", "<|end|>"),
    ),
)
