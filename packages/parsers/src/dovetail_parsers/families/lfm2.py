"""LFM2: a Python list of calls between tokens."""

from dovetail_parsers.arguments.pythonic import Pythonic
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat, UnwrappedCall
from dovetail_parsers.shared_formats import more_calls, next_call

_BEGIN, _END = "<|tool_call_start|>", "<|tool_call_end|>"

FAMILY = Family(
    name="lfm2",
    sample='<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>',
    tool_names=("lfm2",),
    pairs_with="qwen3",
    models={"*lfm2*": None, "*lfm2.5*": "qwen3"},
    template_markers=(_BEGIN,),
    tools=ToolFormat(
        modes={
            "text": Mode(Channel.TEXT, on={_BEGIN: Edge("calls")}),
            "calls": Mode(Channel.BODY, body=Pythonic(), end=Edge("done")),
            "done": Mode(Channel.GAP, on={_END: Edge("text")}, tolerate=more_calls("calls", "[")),
            "more": next_call("calls", "["),
        },
        orphans=(_END,),
        unwrapped=UnwrappedCall("calls", (("[", "("),), needs_closer=True),
    ),
)
