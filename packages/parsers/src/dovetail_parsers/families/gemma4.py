"""Gemma 4: calls in its own notation, with strings between tokens; reasoning in a channel."""

from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.arguments.json_validator import Dialect
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import (
    CallAction,
    Channel,
    Edge,
    Mode,
    ReasoningFormat,
    ToolFormat,
    UnwrappedCall,
)


def braced_format(opener: str, closer: str, quote: str) -> ToolFormat:
    """`OPENER call:NAME{key:QUOTEtextQUOTE,n:1}CLOSER`"""
    return ToolFormat(
        modes={
            "text": Mode(Channel.TEXT, on={opener: Edge("head")}),
            "head": Mode(Channel.GAP, on={"call:": Edge("name")}),
            "name": Mode(Channel.NAME, on={"{": Edge("args", CallAction.OPEN, peek=True)}),
            "args": Mode(
                Channel.BODY,
                body=JsonBody(Dialect(quote=quote, closer=closer, bare_keys=True)),
                end=Edge("done"),
            ),
            "done": Mode(
                Channel.GAP,
                on={closer: Edge("text")},
                tolerate={"call:": Edge("name"), ",": Edge("head")},
            ),
        },
        orphans=(closer,),
        unwrapped=UnwrappedCall("head", (("call:", "{"),)),
    )


FAMILY = Family(
    name="gemma4",
    sample='<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>',
    tool_names=("gemma4",),
    reasoning_names=("gemma4",),
    pairs_with="gemma4",
    models={"*gemma-4*": "gemma4"},
    template_markers=("<|tool_call>call:",),
    tools=braced_format("<|tool_call>", "<tool_call|>", '<|"|>'),
    reasoning=ReasoningFormat(
        openers=("<|channel>thought\n", "<|channel>thought"),
        closers=("<channel|>",),
        pads=("", "\n", ""),
    ),
)
