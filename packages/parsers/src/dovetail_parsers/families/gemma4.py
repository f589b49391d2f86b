"""Gemma 4: calls in a notation of its own, strings between tokens; thoughts in a channel."""

from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.arguments.json_validator import Dialect
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Act, Channel, Mode, ReasoningFormat, To, ToolFormat


def braced(opener: str, closer: str, quote: str) -> ToolFormat:
    """`OPENER call:NAME{key:QUOTEtextQUOTE,n:1}CLOSER`"""
    return ToolFormat(
        modes={
            "text": Mode(Channel.TEXT, on={opener: To("head")}),
            "head": Mode(Channel.GAP, on={"call:": To("name")}),
            "name": Mode(Channel.NAME, on={"{": To("args", Act.OPEN, peek=True)}),
            "args": Mode(
                Channel.BODY,
                body=JsonBody(Dialect(quote=quote, bare_keys=True)),
                end=To("done"),
            ),
            "done": Mode(Channel.GAP, on={closer: To("text")}),
        },
        orphans=(closer,),
    )


FAMILY = Family(
    name="gemma4",
    sample='<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>',
    tool_names=("gemma4",),
    reasoning_names=("gemma4",),
    pairs_with="gemma4",
    models={"*gemma-4*": "gemma4"},
    marks=("<|tool_call>call:",),
    tools=braced("<|tool_call>", "<tool_call|>", '<|"|>'),
    reasoning=ReasoningFormat(
        openers=("<|channel>thought\n", "<|channel>thought"),
        closers=("<channel|>",),
        pads=("", "\n", ""),
    ),
)
