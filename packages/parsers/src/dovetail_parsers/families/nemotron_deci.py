"""Llama-Nemotron: a JSON list of calls between tags."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import json_envelope_format

FAMILY = Family(
    name="nemotron_deci",
    sample='<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>',
    tool_names=("nemotron_deci",),
    pairs_with="nemotron_deci",
    models={"*nemotron*": "nemotron_deci", "*nemotron-nano-*-v2*": "nemotron_nano"},
    template_markers=("<TOOLCALL>",),
    tools=json_envelope_format(Envelope(many=True), {"<TOOLCALL>": "</TOOLCALL>"}),
)
