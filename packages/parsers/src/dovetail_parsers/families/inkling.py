"""Inkling: messages whose first token determines their content."""

from collections.abc import Sequence

from dovetail_model import OutputBlock, ReasoningBlock, ToolCallBlock
from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat
from dovetail_parsers.shared_formats import json_without_opener, more_calls, next_call

_ENVELOPE = Envelope(arguments=("args", "arguments"))
_KINDS = {
    "<|content_thinking|>": Edge("reasoning"),
    "<|content_text|>": Edge("text"),
    "<|content_invoke_tool_json|>": Edge("call"),
}
_MESSAGE = {"<|message_model|>": Edge("header")}
_ENDS = {"<|end_message|>": Edge("text"), "<|content_model_end_sampling|>": Edge("text")}


def write(blocks: Sequence[OutputBlock]) -> str:
    return "".join(map(_write_one, blocks))


def _write_one(block: OutputBlock) -> str:
    if isinstance(block, ToolCallBlock):
        body = "<|content_invoke_tool_json|>" + _ENVELOPE.write([block])
    elif isinstance(block, ReasoningBlock):
        body = "<|content_thinking|>" + block.text
    else:
        body = "<|content_text|>" + block.text
    return f"<|message_model|>{body}<|end_message|>"


FAMILY = Family(
    name="inkling",
    sample=(
        "<|message_model|><|content_thinking|>The user wants the weather.<|end_message|>"
        '<|message_model|><|content_invoke_tool_json|>{"name": "get_weather", '
        '"args": {"city": "Paris"}}<|end_message|>'
    ),
    tool_names=("inkling",),
    reasoning_names=("inkling",),
    pairs_with="inkling",
    models={"*inkling*": "inkling"},
    template_markers=("<|message_model|>",),
    unified=write,
    tools=ToolFormat(
        unwrapped=json_without_opener("call", _ENVELOPE),
        modes={
            "text": Mode(Channel.TEXT, on=_MESSAGE | _ENDS, tolerate=_KINDS),
            "header": Mode(Channel.HEADER, on=_KINDS, tolerate=_ENDS),
            "reasoning": Mode(Channel.REASONING, on=_ENDS, tolerate=_MESSAGE | _KINDS),
            "call": Mode(Channel.BODY, body=_ENVELOPE, end=Edge("done")),
            "done": Mode(
                Channel.GAP,
                on=_ENDS,
                tolerate=_MESSAGE | more_calls("call", "{", "["),
                otherwise=Edge("text"),
            ),
            "more": next_call("call", "{", "["),
        },
    ),
)
