"""Muse Glimmer: messages to a recipient. A message to itself is reasoning, one to the user is text,
and one to a tool contains an invocation; an invocation is a call only there.
"""

import re
from collections.abc import Sequence

from dovetail_model import OutputBlock, ReasoningBlock, ToolCallBlock
from dovetail_parsers.arguments.notation import load_arguments, write_raw
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, Route, ToolFormat
from dovetail_parsers.shared_formats import TaggedFormat, raw_value

_RECIPIENT = re.compile(r"\bto=([^\s<>{}\"'=,;|]+)")
_MESSAGE = {"<|start|>": Edge("header")}
_ENDS = {"<|eom|>": Edge("text"), "<|eot|>": Edge("text")}

_INVOKE = TaggedFormat(
    section=("<atem:function_calls>", "</atem:function_calls>"),
    name=('<atem:invoke name="', '">'),
    key='<atem:parameter name="',
    values={'">': raw_value("</atem:parameter>")},
    end="</atem:invoke>",
    many=True,
).to_tool_format()


def route(header: str) -> Route:
    recipient = _RECIPIENT.search(header)
    if recipient is None or recipient[1] == "user":
        return Route("text")
    return Route("reasoning" if recipient[1] == "self" else "tool")


def write(blocks: Sequence[OutputBlock]) -> str:
    return "<|eom|><|start|>assistant".join(map(_write_one, blocks)) + "<|eot|>"


def _write_one(block: OutputBlock) -> str:
    if isinstance(block, ToolCallBlock):
        return f" to={block.name}<|message|>{_write_call(block)}"
    recipient = "self" if isinstance(block, ReasoningBlock) else "user"
    return f" to={recipient}<|message|>{block.text}"


def _write_call(call: ToolCallBlock) -> str:
    parameters = "".join(
        f'<atem:parameter name="{key}">{write_raw(value)}</atem:parameter>\n'
        for key, value in load_arguments(call.arguments).items()
    )
    invoke = f'<atem:invoke name="{call.name}">\n{parameters}</atem:invoke>'
    return f"<atem:function_calls>\n{invoke}\n</atem:function_calls>"


FAMILY = Family(
    name="muse_glimmer",
    sample=(
        " to=self<|message|>The user wants the weather.<|eom|><|start|>assistant to=get_weather"
        '<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">Paris</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eot|>"
    ),
    tool_names=("muse_glimmer", "muse"),
    reasoning_names=("muse_glimmer",),
    pairs_with="muse_glimmer",
    models={"*muse*": "muse_glimmer"},
    template_markers=("<atem:invoke",),
    unified=write,
    tools=ToolFormat(
        entry="start",
        modes={
            **_INVOKE.modes,
            # the prompt ends with `<|start|>assistant`, so the output starts with a recipient
            "start": Mode(
                Channel.GAP,
                on=_MESSAGE,
                tolerate={"to=": Edge("header", peek=True), "<|message|>": Edge("text")},
            ),
            "text": Mode(Channel.TEXT, on=_MESSAGE | _ENDS),
            "header": Mode(Channel.HEADER, on={"<|message|>": Edge("text")}, route=route),
            "reasoning": Mode(Channel.REASONING, on=_ENDS | _MESSAGE),
            "tool": Mode(
                Channel.GAP,
                on={"<atem:function_calls>": Edge("section")},
                tolerate=_INVOKE.modes["text"].tolerate,
                otherwise=Edge("text"),
            ),
        },
    ),
)
