"""LongCat: Hermes with its own tags."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import json_envelope_format

FAMILY = Family(
    name="longcat",
    sample='<longcat_tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n'
    "</longcat_tool_call>",
    tool_names=("longcat",),
    models={"*longcat*": None},
    template_markers=("<longcat_tool_call>",),
    tools=json_envelope_format(
        Envelope(), {"<longcat_tool_call>": "</longcat_tool_call>"}, pad="\n", lead="\n"
    ),
)
