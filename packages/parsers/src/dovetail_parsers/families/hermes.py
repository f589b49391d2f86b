"""Hermes, Qwen2.5, Qwen3: a JSON envelope between tags, one pair of tags per call."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import json_envelope_format

FAMILY = Family(
    name="hermes",
    sample='<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    tool_names=("hermes", "qwen25", "qwen", "granite4", "trinity"),
    pairs_with="qwen3",
    models={
        "*hermes*": None,
        "*hermes-2*": None,
        "*hermes-3*": None,
        "*hermes-4*": "qwen3",
        "*qwen2*": None,
        "*qwen3*": "qwen3",
        "*qwq*": "deepseek_r1",
        "*granite-4*": None,
        "*bielik*": "qwen3",
        "*reka*": "qwen3",
        "*mimo-vl*": None,
        "*smollm*": None,
        "*trinity*": "deepseek_r1",
    },
    template_markers=("<tool_call>",),
    tools=json_envelope_format(Envelope(), {"<tool_call>": "</tool_call>"}, pad="\n", lead="\n"),
)
