"""Apertus: a JSON list of objects with one key, the tool's name."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import ReasoningFormat
from dovetail_parsers.shared_formats import json_envelope_format

FAMILY = Family(
    name="apertus",
    sample='<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>',
    tool_names=("apertus", "apertus2509"),
    reasoning_names=("apertus2509", "apertus"),
    pairs_with="apertus2509",
    models={"*apertus*": "apertus2509"},
    template_markers=("<|tools_prefix|>",),
    tools=json_envelope_format(
        Envelope(name=(), many=True), {"<|tools_prefix|>": "<|tools_suffix|>"}
    ),
    reasoning=ReasoningFormat(openers=("<|inner_prefix|>",), closers=("<|inner_suffix|>",)),
)
