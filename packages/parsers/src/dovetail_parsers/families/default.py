"""For models of no known family: JSON calls behind any of the common markers, or bare."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Mode, To, ToolFormat

_MARKED = {
    "<TOOLCALL>": To("calls"),
    "<|python_tag|>": To("calls"),
    "<tool_call>": To("calls"),
    "[TOOL_CALLS]": To("calls"),
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
                tolerate={"{": To("bare", peek=True), "[": To("bare", peek=True)},
            ),
            "text": Mode(Channel.TEXT, on=_MARKED),
            "bare": Mode(Channel.BODY, body=Envelope(many=True, bare=True), end=To("done")),
            "calls": Mode(Channel.BODY, body=Envelope(many=True), end=To("done")),
            "done": Mode(
                Channel.GAP,
                on={"</TOOLCALL>": To("text"), "</tool_call>": To("text")},
                tolerate={";": To("more")},
                otherwise=To("text"),
            ),
            "more": Mode(Channel.GAP, on={"{": To("calls", peek=True)}),
        },
        orphans=("</TOOLCALL>", "</tool_call>"),
    ),
)
