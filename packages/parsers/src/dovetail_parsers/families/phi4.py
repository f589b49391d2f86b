"""Phi-4: the word `functools` before a JSON list of calls."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Mode, To, ToolFormat

FAMILY = Family(
    name="phi4",
    sample='functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
    tool_names=("phi4", "phi4_mini_json"),
    models={"*phi-4*": None},
    marks=("functools",),
    tools=ToolFormat(
        modes={
            "text": Mode(
                Channel.TEXT,
                on={"functools": To("calls")},
                tolerate={"<|tool_call|>": To("calls")},
            ),
            "calls": Mode(Channel.BODY, body=Envelope(many=True), end=To("done")),
            "done": Mode(
                Channel.GAP, tolerate={"<|/tool_call|>": To("text")}, otherwise=To("text")
            ),
        },
        orphans=("<|/tool_call|>",),
    ),
)
