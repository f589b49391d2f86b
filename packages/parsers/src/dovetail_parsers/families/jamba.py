"""Jamba, Hunyuan-A13B, Apriel: a JSON list of calls between tags. MiniMax-M1 writes no list."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat
from dovetail_parsers.shared_formats import json_without_opener, more_calls, next_call

FAMILY = Family(
    name="jamba",
    sample='<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_calls>',
    tool_names=("jamba", "hunyuan_a13b", "apriel"),
    models={
        "*jamba*": None,
        "*hunyuan-a13b*": "hunyuan_a13b",
        "*apriel*": "apriel",
        "*minimax-m1*": "qwen3",
    },
    template_markers=("<tool_calls>",),
    tools=ToolFormat(
        unwrapped=json_without_opener("calls", Envelope(many=True)),
        modes={
            "text": Mode(Channel.TEXT, on={"<tool_calls>": Edge("calls")}),
            "calls": Mode(Channel.BODY, body=Envelope(many=True), end=Edge("done")),
            "done": Mode(
                Channel.GAP,
                on={"</tool_calls>": Edge("text")},
                tolerate=more_calls("calls", "[", "{"),
            ),
            "more": next_call("calls", "[", "{"),
        },
        orphans=("</tool_calls>",),
        lead="\n",
    ),
)
