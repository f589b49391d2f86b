"""Granite 3: a marker and a JSON list of calls; reasoning announced in words, in 3.3 in tags."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import ReasoningFormat
from dovetail_parsers.shared_formats import json_envelope_format

FAMILY = Family(
    name="granite",
    sample='<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
    tool_names=("granite",),
    reasoning_names=("granite",),
    pairs_with="granite",
    models={"*granite-3*": "granite"},
    template_markers=("<|tool_call|>", "granite"),
    tools=json_envelope_format(Envelope(many=True), {"<|tool_call|>": "", "<tool_call>": ""}),
    reasoning=ReasoningFormat(
        openers=("Here's my thought process:", "Here is my thought process:", "<think>"),
        closers=("Here's my response:", "Here is my response:", "</think>"),
        pads=("\n", "\n", "\n"),
        frames=("<response>", "</response>"),
        orphans=("</think>",),
    ),
)
