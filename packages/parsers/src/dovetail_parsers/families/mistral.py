"""Mistral: `[TOOL_CALLS]` before each call's name, or before a JSON list of calls."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Act, Channel, Mode, ReasoningFormat, To, ToolFormat

TOOLS = ToolFormat(
    modes={
        "text": Mode(Channel.TEXT, on={"[TOOL_CALLS]": To("head")}),
        "head": Mode(
            Channel.GAP,
            tolerate={"[": To("list", peek=True), "{": To("list", peek=True)},
            otherwise=To("name"),
        ),
        "name": Mode(
            Channel.NAME,
            on={"[ARGS]": To("args", Act.OPEN)},
            tolerate={"[CALL_ID]": To("id"), "{": To("args", Act.OPEN, peek=True)},
        ),
        "id": Mode(Channel.ID, on={"[ARGS]": To("args", Act.OPEN)}),
        "args": Mode(
            Channel.BODY,
            body=JsonBody(),
            tolerate={"[TOOL_CALLS]": To("head", Act.CLOSE)},
            end=To("done"),
        ),
        "list": Mode(Channel.BODY, body=Envelope(many=True), end=To("done")),
        "done": Mode(Channel.GAP, on={"[TOOL_CALLS]": To("head")}, otherwise=To("text")),
    },
)

FAMILY = Family(
    name="mistral",
    sample='[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
    tool_names=("mistral",),
    reasoning_names=("mistral",),
    pairs_with="mistral",
    models={
        "*mistral*": None,
        "*devstral*": None,
        "*ministral*": None,
        "*magistral*": "mistral",
        "*ministral*reasoning*": "mistral",
    },
    marks=("[TOOL_CALLS]",),
    thought_marks=("[THINK]",),
    tools=TOOLS,
    reasoning=ReasoningFormat(openers=("[THINK]",), closers=("[/THINK]",), starts_inside=True),
)
