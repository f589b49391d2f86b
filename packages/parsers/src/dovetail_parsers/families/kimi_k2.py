"""Kimi K2 and K2.5: a section of calls, each with its id and a JSON object.

The id contains the name: `functions.NAME:INDEX`. The section's tags also occur in the singular.
"""

import re

from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import CallAction, Channel, Edge, Mode, ToolFormat, UnwrappedCall

_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?\Z")


def parse_call_id(text: str) -> tuple[str, str | None]:
    found = _ID.match(text)
    return (found[1] if found else text), text


def format_call_id(name: str, index: int) -> str:
    return f"functions.{name}:{index}"


TOOLS = ToolFormat(
    modes={
        "text": Mode(
            Channel.TEXT,
            on={"<|tool_calls_section_begin|>": Edge("section")},
            tolerate={
                "<|tool_call_section_begin|>": Edge("section"),
                "<|tool_call_begin|>": Edge("name"),
            },
        ),
        "section": Mode(Channel.GAP, on={"<|tool_call_begin|>": Edge("name")}),
        "name": Mode(
            Channel.NAME,
            on={"<|tool_call_argument_begin|>": Edge("args", CallAction.OPEN)},
            read=parse_call_id,
            spell=format_call_id,
        ),
        "args": Mode(
            Channel.BODY,
            body=JsonBody(),
            tolerate={"<|tool_call_end|>": Edge("done", CallAction.CLOSE)},
            end=Edge("end"),
        ),
        "end": Mode(
            Channel.GAP,
            on={"<|tool_call_end|>": Edge("done")},
            tolerate={
                "<|tool_call_begin|>": Edge("name"),
                "<|tool_calls_section_end|>": Edge("text"),
            },
        ),
        "done": Mode(
            Channel.GAP,
            on={
                "<|tool_call_begin|>": Edge("name"),
                "<|tool_calls_section_end|>": Edge("text"),
            },
            tolerate={
                "<|tool_call_section_end|>": Edge("text"),
                "<|tool_call_end|>": Edge("done"),
            },
        ),
    },
    orphans=("<|tool_calls_section_end|>", "<|tool_call_section_end|>", "<|tool_call_end|>"),
    unwrapped=UnwrappedCall("name", (("functions.", ":"), ("", "<|tool_call_argument_begin|>"))),
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
    template_markers=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
    tools=TOOLS,
)
