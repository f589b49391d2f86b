"""xLAM: a JSON list of calls as the full output: bare, fenced, or after another marker."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat
from dovetail_parsers.shared_formats import mirrored_closers, more_calls, next_call

_WRAPS = {"[TOOL_CALLS]": Edge("calls"), "<tool_call>": Edge("calls"), "```json": Edge("bare")}

FAMILY = Family(
    name="xlam",
    sample='[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
    tool_names=("xlam",),
    models={"*xlam*": None},
    tools=ToolFormat(
        entry="start",
        modes={
            "start": Mode(
                Channel.GAP,
                on={"[": Edge("bare", peek=True)},
                tolerate={**_WRAPS, "```": Edge("bare")},
            ),
            "text": Mode(Channel.TEXT, tolerate=_WRAPS),
            "bare": Mode(Channel.BODY, body=Envelope(many=True, bare=True), end=Edge("done")),
            "calls": Mode(Channel.BODY, body=Envelope(many=True), end=Edge("done")),
            "done": Mode(
                Channel.GAP,
                tolerate={
                    "```": Edge("text"),
                    **mirrored_closers("[TOOL_CALLS]", "<tool_call>"),
                    **more_calls("bare", "{", "["),
                },
                otherwise=Edge("text"),
            ),
            "more": next_call("bare", "{", "["),
        },
        orphans=("</tool_call>",),
    ),
)
