"""xLAM: a JSON list of calls as the whole answer: bare, fenced, or behind another's marker."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Mode, To, ToolFormat

_WRAPS = {"[TOOL_CALLS]": To("calls"), "<tool_call>": To("calls"), "```json": To("bare")}

FAMILY = Family(
    name="xlam",
    sample='[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
    tool_names=("xlam",),
    models={"*xlam*": None},
    tools=ToolFormat(
        entry="start",
        modes={
            "start": Mode(
                Channel.GAP,
                on={"[": To("bare", peek=True)},
                tolerate={**_WRAPS, "```": To("bare")},
            ),
            "text": Mode(Channel.TEXT, tolerate=_WRAPS),
            "bare": Mode(Channel.BODY, body=Envelope(many=True, bare=True), end=To("done")),
            "calls": Mode(Channel.BODY, body=Envelope(many=True), end=To("done")),
            "done": Mode(
                Channel.GAP,
                tolerate={"```": To("text"), "</tool_call>": To("text")},
                otherwise=To("text"),
            ),
        },
        orphans=("</tool_call>",),
    ),
)
