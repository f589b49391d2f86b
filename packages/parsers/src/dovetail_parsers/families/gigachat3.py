"""GigaChat 3: a JSON call after a token; 3.0 writes it as a message with its own role."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat
from dovetail_parsers.shared_formats import mirrored_closers, more_calls, next_call

FAMILY = Family(
    name="gigachat3",
    sample='<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}',
    tool_names=("gigachat3",),
    models={"*gigachat3*": None, "*gigachat-3*": None},
    template_markers=("<|role_sep|>", "<|message_sep|>"),
    tools=ToolFormat(
        modes={
            "text": Mode(
                Channel.TEXT,
                on={"<|function_call|>": Edge("call")},
                tolerate={"function call<|role_sep|>": Edge("call")},
            ),
            "call": Mode(Channel.BODY, body=Envelope(), end=Edge("done")),
            "done": Mode(
                Channel.GAP,
                on={"<|function_call|>": Edge("call")},
                tolerate={"<|message_sep|>": Edge("text")}
                | mirrored_closers("<|function_call|>")
                | more_calls("again", "{"),
                otherwise=Edge("text"),
            ),
            "again": Mode(Channel.BODY, body=Envelope(bare=True), end=Edge("done")),
            "more": next_call("again", "{"),
        },
        orphans=("<|message_sep|>",),
    ),
)
