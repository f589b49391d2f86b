"""GigaChat 3: a JSON call behind a token; 3.0 writes it as a message of its own role."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Mode, To, ToolFormat

FAMILY = Family(
    name="gigachat3",
    sample='<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}',
    tool_names=("gigachat3",),
    models={"*gigachat3*": None, "*gigachat-3*": None},
    marks=("<|role_sep|>", "<|message_sep|>"),
    tools=ToolFormat(
        modes={
            "text": Mode(
                Channel.TEXT,
                on={"<|function_call|>": To("call")},
                tolerate={"function call<|role_sep|>": To("call")},
            ),
            "call": Mode(Channel.BODY, body=Envelope(), end=To("done")),
            "done": Mode(
                Channel.GAP,
                on={"<|function_call|>": To("call")},
                tolerate={"<|message_sep|>": To("text")},
                otherwise=To("text"),
            ),
        },
        orphans=("<|message_sep|>",),
    ),
)
