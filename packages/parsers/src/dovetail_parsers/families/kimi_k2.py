"""Kimi K2 and K2.5: a section of calls, each with its id and a JSON object.

The id holds the name: `functions.NAME:INDEX`. The section's tags also occur in the singular.
"""

import re

from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Act, Channel, Mode, To, ToolFormat

_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?\Z")


def read_id(text: str) -> tuple[str, str | None]:
    found = _ID.match(text)
    return (found[1] if found else text), text


def spell_id(name: str, index: int) -> str:
    return f"functions.{name}:{index}"


TOOLS = ToolFormat(
    modes={
        "text": Mode(
            Channel.TEXT,
            on={"<|tool_calls_section_begin|>": To("section")},
            tolerate={
                "<|tool_call_section_begin|>": To("section"),
                "<|tool_call_begin|>": To("name"),
            },
        ),
        "section": Mode(Channel.GAP, on={"<|tool_call_begin|>": To("name")}),
        "name": Mode(
            Channel.NAME,
            on={"<|tool_call_argument_begin|>": To("args", Act.OPEN)},
            read=read_id,
            spell=spell_id,
        ),
        "args": Mode(
            Channel.BODY,
            body=JsonBody(),
            tolerate={"<|tool_call_end|>": To("done", Act.CLOSE)},
            end=To("end"),
        ),
        "end": Mode(
            Channel.GAP,
            on={"<|tool_call_end|>": To("done")},
            tolerate={
                "<|tool_call_begin|>": To("name"),
                "<|tool_calls_section_end|>": To("text"),
            },
        ),
        "done": Mode(
            Channel.GAP,
            on={
                "<|tool_call_begin|>": To("name"),
                "<|tool_calls_section_end|>": To("text"),
            },
            tolerate={
                "<|tool_call_section_end|>": To("text"),
                "<|tool_call_end|>": To("done"),
            },
        ),
    },
    orphans=("<|tool_calls_section_end|>", "<|tool_call_section_end|>", "<|tool_call_end|>"),
)

FAMILY = Family(
    name="kimi_k2",
    sample=(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>'
        "<|tool_calls_section_end|>"
    ),
    tool_names=("kimi_k2",),
    pairs_with="kimi_k2",
    models={
        "*kimi-k2*": None,
        "*kimi-k2-thinking*": "kimi_k2",
        "*kimi-k2.5*": "kimi_k25",
        "*kimi-k2.6*": "kimi_k25",
    },
    marks=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
    tools=TOOLS,
)
