"""Mistral: `[TOOL_CALLS]` before each call's name, or before a JSON list of calls."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import (
    CallAction,
    Channel,
    Edge,
    Mode,
    ReasoningFormat,
    ToolFormat,
    UnwrappedCall,
)
from dovetail_parsers.shared_formats import mirrored_closers, more_calls, next_call

TOOLS = ToolFormat(
    modes={
        "text": Mode(Channel.TEXT, on={"[TOOL_CALLS]": Edge("head")}),
        "head": Mode(
            Channel.GAP,
            tolerate={"[": Edge("list", peek=True), "{": Edge("list", peek=True)},
            otherwise=Edge("name"),
        ),
        "name": Mode(
            Channel.NAME,
            on={"[ARGS]": Edge("args", CallAction.OPEN)},
            tolerate={"[CALL_ID]": Edge("id"), "{": Edge("args", CallAction.OPEN, peek=True)},
        ),
        "id": Mode(Channel.ID, on={"[ARGS]": Edge("args", CallAction.OPEN)}),
        "args": Mode(
            Channel.BODY,
            body=JsonBody(),
            tolerate={"[TOOL_CALLS]": Edge("head", CallAction.CLOSE)},
            end=Edge("done"),
        ),
        "list": Mode(Channel.BODY, body=Envelope(many=True), end=Edge("done")),
        "again": Mode(Channel.BODY, body=Envelope(many=True, bare=True), end=Edge("done")),
        "done": Mode(
            Channel.GAP,
            on={"[TOOL_CALLS]": Edge("head")},
            tolerate=mirrored_closers("[TOOL_CALLS]") | more_calls("again", "[", "{"),
            otherwise=Edge("text"),
        ),
        "more": next_call("again", "[", "{"),
    },
    unwrapped=UnwrappedCall("name", (("", "[ARGS]"), ("", "[CALL_ID]"))),
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
    template_markers=("[TOOL_CALLS]",),
    reasoning_template_markers=("[THINK]",),
    tools=TOOLS,
    reasoning=ReasoningFormat(openers=("[THINK]",), closers=("[/THINK]",), starts_inside=True),
)
