"""Llama 3.2, ToolACE and others: a Python list of calls as the full output."""

from dovetail_parsers.arguments.pythonic import Pythonic
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat
from dovetail_parsers.shared_formats import more_calls, next_call

FAMILY = Family(
    name="pythonic",
    sample='[get_weather(city="Paris", days=3)]',
    tool_names=("pythonic",),
    models={"*toolace*": None, "*toolace-2*": None},
    tools=ToolFormat(
        entry="start",
        modes={
            "start": Mode(Channel.GAP, on={"[": Edge("calls", peek=True)}),
            "text": Mode(Channel.TEXT),
            "calls": Mode(Channel.BODY, body=Pythonic(bare=True), end=Edge("done")),
            "done": Mode(Channel.GAP, tolerate=more_calls("calls", "["), otherwise=Edge("text")),
            "more": next_call("calls", "["),
        },
    ),
)
