"""Llama 3 and 4 with JSON calls: after a token, or as the full output, joined by semicolons."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat
from dovetail_parsers.shared_formats import mirrored_closers, next_call

_KEYS = ("parameters", "arguments")

FAMILY = Family(
    name="llama3_json",
    sample='<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}',
    tool_names=("llama3_json", "llama3", "llama4_json"),
    models={"*llama-3*": None, "*llama3*": None},
    template_markers=('{"name": function name, "parameters"',),
    tools=ToolFormat(
        entry="start",
        modes={
            "start": Mode(
                Channel.GAP,
                on={"<|python_tag|>": Edge("call"), "{": Edge("bare", peek=True)},
            ),
            "text": Mode(Channel.TEXT, on={"<|python_tag|>": Edge("call")}),
            "call": Mode(Channel.BODY, body=Envelope(arguments=_KEYS), end=Edge("done")),
            "bare": Mode(Channel.BODY, body=Envelope(arguments=_KEYS, bare=True), end=Edge("done")),
            "done": Mode(
                Channel.GAP,
                on={";": Edge("more", pad=" ")},
                tolerate={
                    "{": Edge("bare", peek=True),
                    "<|python_tag|>": Edge("call"),
                    ",": Edge("comma"),
                    **mirrored_closers("<|python_tag|>"),
                },
                otherwise=Edge("text"),
            ),
            "comma": next_call("bare", "{"),
            "more": Mode(
                Channel.GAP,
                on={"{": Edge("call", peek=True)},
                tolerate={"<|python_tag|>": Edge("call")},
            ),
        },
    ),
)
