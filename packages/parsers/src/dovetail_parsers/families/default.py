"""For models of unknown families: JSON calls after any of the common markers, or bare."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat
from dovetail_parsers.shared_formats import mirrored_closers, more_calls, next_call

_MARKED = {
    "<TOOLCALL>": Edge("calls"),
    "<|python_tag|>": Edge("calls"),
    "<tool_call>": Edge("calls"),
    "[TOOL_CALLS]": Edge("calls"),
}

FAMILY = Family(
    name="default",
    sample='<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>',
    tool_names=("default",),
    tools=ToolFormat(
        entry="start",
        modes={
            "start": Mode(
                Channel.GAP,
                on=_MARKED,
                tolerate={"{": Edge("bare", peek=True), "[": Edge("bare", peek=True)},
            ),
            "text": Mode(Channel.TEXT, on=_MARKED),
            "bare": Mode(Channel.BODY, body=Envelope(many=True, bare=True), end=Edge("done")),
            "calls": Mode(Channel.BODY, body=Envelope(many=True), end=Edge("done")),
            "done": Mode(
                Channel.GAP,
                on={"</TOOLCALL>": Edge("text"), "</tool_call>": Edge("text")},
                tolerate={
                    ";": Edge("more"),
                    **mirrored_closers(*_MARKED),
                    **more_calls("bare", "{", "["),
                },
                otherwise=Edge("text"),
            ),
            "more": next_call("calls", "{", "["),
        },
        orphans=("</TOOLCALL>", "</tool_call>"),
    ),
)
