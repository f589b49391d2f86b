"""Olmo 3: Python calls between tags, one per line."""

from dovetail_parsers.arguments.pythonic import Pythonic
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat, UnwrappedCall

_BEGIN, _END = "<function_calls>", "</function_calls>"

FAMILY = Family(
    name="olmo3",
    sample='<function_calls>get_weather(city="Paris")\nget_time()</function_calls>',
    tool_names=("olmo3",),
    pairs_with="olmo3",
    models={"*olmo-3*": "olmo3"},
    template_markers=(_BEGIN,),
    tools=ToolFormat(
        modes={
            "text": Mode(Channel.TEXT, on={_BEGIN: Edge("calls")}),
            "calls": Mode(Channel.BODY, body=Pythonic(brackets=False), end=Edge("done")),
            "done": Mode(Channel.GAP, on={_END: Edge("text")}),
        },
        orphans=(_END,),
        unwrapped=UnwrappedCall("calls", (("", "("),), needs_closer=True),
    ),
)
