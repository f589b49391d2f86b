"""Calls that the model made and nobody ran: the server left them in its text."""

from dovetail.watch.reference_model import Lens
from dovetail.watch.verdict import Finding
from dovetail_model import CallOpen, Message, ReasoningBlock, Request, TextBlock
from dovetail_parsers import Parser

#: Parsers to try where the model's family is not known: the forms that most models use.
_USUAL = ("hermes", "qwen3_coder", "mistral", "llama3_json", "pythonic")
_HINTS = ("<tool_call>", "<function=", "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call", "<｜tool")


def calls_as_text(message: Message, request: Request, lens: Lens) -> tuple[Finding, ...]:
    """The calls that the model made and the server left in its text or its thoughts.

    Only those of a tool that the request offered count: others may be quoted.
    """
    offered = {tool.model_name for tool in request.tools} | {tool.name for tool in request.tools}
    found: list[Finding] = []
    for block in message.blocks:
        if not isinstance(block, TextBlock | ReasoningBlock) or not offered:
            continue
        name = _call_in(block.text, offered, request, lens)
        if name is not None:
            where = "text" if isinstance(block, TextBlock) else "a thought"
            found.append(Finding("call_as_text", f"a call of {name} stayed in {where}"))
    return tuple(found)


def _call_in(text: str, offered: set[str], request: Request, lens: Lens) -> str | None:
    if lens.family is not None:
        parsers: tuple[str, ...] = (lens.family,)
    elif any(hint in text for hint in _HINTS):
        parsers = _USUAL
    else:
        return None
    for parser in parsers:
        reader = Parser(parser, tools=request.tools)
        for event in (*reader.feed(text), *reader.finish()):
            if isinstance(event, CallOpen) and event.name in offered:
                return event.name
    return None
