"""Phi-4: the word `functools` before a JSON list of calls."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat
from dovetail_parsers.shared_formats import mirrored_closers, more_calls, next_call

FAMILY = Family(
    name="phi4",
    sample='functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
    tool_names=("phi4", "phi4_mini_json"),
    models={"*phi-4*": None},
    template_markers=("functools",),
    tools=ToolFormat(
        modes={
            "text": Mode(
                Channel.TEXT,
                on={"functools": Edge("calls")},
                tolerate={"<|tool_call|>": Edge("calls")},
            ),
            "calls": Mode(Channel.BODY, body=Envelope(many=True), end=Edge("done")),
            "again": Mode(Channel.BODY, body=Envelope(many=True, bare=True), end=Edge("done")),
            "done": Mode(
                Channel.GAP,
                tolerate=mirrored_closers("<|tool_call|>") | more_calls("again", "[", "{"),
                otherwise=Edge("text"),
            ),
            "more": next_call("again", "[", "{"),
        },
        orphans=("<|/tool_call|>",),
    ),
)
