"""Calls that the model made and nobody ran: the server left them in its text."""

from dovetail.watch.reference_model import ReferenceModel
from dovetail.watch.verdict import TrafficFinding
from dovetail_model import CallOpen, Message, ReasoningBlock, Request, TextBlock
from dovetail_parsers import Parser

#: Parsers to try where the model's family is not known: the forms that most models use.
_DEFAULT_PARSERS = ("hermes", "qwen3_coder", "mistral", "llama3_json", "pythonic")
_CALL_MARKERS = (
    "<tool_call>",
    "<function=",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<|tool_call",
    "<｜tool",
)


def find_unparsed_calls(
    message: Message, request: Request, reference: ReferenceModel
) -> tuple[TrafficFinding, ...]:
    """The calls that the model made and the server left in its text or its thoughts.

    Only those of a tool that the request offered count: others may be quoted.
    """
    offered = {tool.model_name for tool in request.tools} | {tool.name for tool in request.tools}
    found: list[TrafficFinding] = []
    for block in message.blocks:
        if not isinstance(block, TextBlock | ReasoningBlock) or not offered:
            continue
        name = _find_call(block.text, offered, request, reference)
        if name is not None:
            where = "text" if isinstance(block, TextBlock) else "a thought"
            found.append(TrafficFinding("call_as_text", f"a call of {name} stayed in {where}"))
    return tuple(found)


def _find_call(text: str, offered: set[str], request: Request, lens: ReferenceModel) -> str | None:
    if lens.tool_parser is not None:
        parsers: tuple[str, ...] = (lens.tool_parser,)
    elif any(hint in text for hint in _CALL_MARKERS):
        parsers = _DEFAULT_PARSERS
    else:
        return None
    for parser in parsers:
        reader = Parser(parser, tools=request.tools)
        for event in (*reader.feed(text), *reader.finish()):
            if isinstance(event, CallOpen) and event.name in offered:
                return event.name
    return None
