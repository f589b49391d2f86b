"""Granite-20B-FC: a marker before each JSON call."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import enveloped

FAMILY = Family(
    name="granite-20b-fc",
    sample='<function_call>{"name": "get_weather", "arguments": {"city": "Paris"}}',
    tool_names=("granite-20b-fc",),
    models={"*granite-20b*": None},
    marks=("<function_call>",),
    tools=enveloped(Envelope(), {"<function_call>": ""}),
)
