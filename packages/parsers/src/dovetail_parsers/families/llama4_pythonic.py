"""Llama 4: a Python list of calls between tokens, or as the full output."""

from dovetail_parsers.arguments.pythonic import Pythonic
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat
from dovetail_parsers.shared_formats import more_calls, next_call

_BEGIN, _END = "<|python_start|>", "<|python_end|>"

FAMILY = Family(
    name="llama4_pythonic",
    sample='<|python_start|>[get_weather(city="Paris")]<|python_end|>',
    tool_names=("llama4_pythonic",),
    models={"*llama-4*": None},
    template_markers=(_BEGIN,),
    tools=ToolFormat(
        entry="start",
        modes={
            "start": Mode(
                Channel.GAP, on={_BEGIN: Edge("calls")}, tolerate={"[": Edge("bare", peek=True)}
            ),
            "text": Mode(Channel.TEXT, on={_BEGIN: Edge("calls")}),
            "calls": Mode(Channel.BODY, body=Pythonic(), end=Edge("done")),
            "bare": Mode(Channel.BODY, body=Pythonic(bare=True), end=Edge("done")),
            "done": Mode(
                Channel.GAP,
                on={_END: Edge("text")},
                tolerate=more_calls("bare", "["),
                otherwise=Edge("text"),
            ),
            "more": next_call("bare", "["),
        },
        orphans=(_END,),
    ),
)
