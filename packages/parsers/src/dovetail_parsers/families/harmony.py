"""gpt-oss (harmony): messages with a header, whose channel determines the kind of message.

`analysis` is reasoning, `final` and a `commentary` without recipient are text, a recipient
`functions.NAME` makes the message a call.
"""

import re
from collections.abc import Sequence

from dovetail_model import OutputBlock, ReasoningBlock, ToolCallBlock
from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import CallAction, Channel, Edge, Mode, Route, ToolFormat

_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<>{}\"'=,;|]+)")
_HEADER = {"<|start|>": Edge("header"), "<|channel|>": Edge("header")}
_HEADERS = {start: Edge("header", peek=True) for start in ("to=", "commentary to=", "analysis to=")}
_ENDS = {marker: Edge("text") for marker in ("<|end|>", "<|return|>", "<|call|>")}
_STRAY = {marker: Edge("text") for marker in ("<|message|>", "<|constrain|>")}


def route(header: str) -> Route:
    recipient = _RECIPIENT.search(header)
    if recipient is not None and recipient[1] != "assistant":
        return Route("call", recipient[1])
    return Route("reasoning" if "analysis" in header else "text")


def write(blocks: Sequence[OutputBlock]) -> str:
    return "<|start|>assistant".join(map(_write_one, blocks))


def _write_one(block: OutputBlock) -> str:
    if isinstance(block, ToolCallBlock):
        header = f"<|channel|>commentary to=functions.{block.name} <|constrain|>json"
        return f"{header}<|message|>{block.arguments}<|call|>"
    channel = "analysis" if isinstance(block, ReasoningBlock) else "final"
    return f"<|channel|>{channel}<|message|>{block.text}<|end|>"


FAMILY = Family(
    name="harmony",
    sample=(
        "<|channel|>analysis<|message|>The user wants the weather.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        '<|message|>{"city": "Paris"}<|call|>'
    ),
    tool_names=("harmony", "openai", "gpt-oss"),
    reasoning_names=("gpt_oss", "openai_gptoss", "gpt-oss"),
    pairs_with="gpt_oss",
    models={"*gpt-oss*": "gpt_oss"},
    template_markers=("<|channel|>", "<|message|>"),
    unified=write,
    tools=ToolFormat(
        entry="start",
        modes={
            # the prompt ends with `<|start|>assistant`, so the output may start with a recipient
            "start": Mode(Channel.GAP, on=_HEADER, tolerate=_HEADERS),
            "text": Mode(Channel.TEXT, on=_HEADER | _ENDS, tolerate=_STRAY),
            "header": Mode(
                Channel.HEADER,
                on={
                    "<|channel|>": Edge("header"),
                    "<|constrain|>": Edge("header"),
                    "<|message|>": Edge("text"),
                },
                tolerate={"<|start|>": Edge("header")},
                route=route,
            ),
            "reasoning": Mode(Channel.REASONING, on=_HEADER | _ENDS),
            "call": Mode(
                Channel.BODY,
                body=JsonBody(),
                tolerate={
                    "<|call|>": Edge("text", CallAction.CLOSE),
                    "<|end|>": Edge("text", CallAction.CLOSE),
                },
                end=Edge("done"),
            ),
            "done": Mode(Channel.GAP, on=_ENDS, tolerate=_HEADER, otherwise=Edge("text")),
        },
    ),
)
