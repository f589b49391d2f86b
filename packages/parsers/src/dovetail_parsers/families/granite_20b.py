"""Granite-20B-FC: a marker before each JSON call."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import json_envelope_format

FAMILY = Family(
    name="granite-20b-fc",
    sample='<function_call>{"name": "get_weather", "arguments": {"city": "Paris"}}',
    tool_names=("granite-20b-fc",),
    models={"*granite-20b*": None},
    template_markers=("<function_call>",),
    tools=json_envelope_format(Envelope(), {"<function_call>": ""}),
)
