"""A family as a plugin would register it."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.shared_formats import json_envelope_format

FAMILY = Family(
    name="acme",
    sample='<acme_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</acme_call>',
    tool_names=("acme",),
    models={"*acme-*": None},
    template_markers=("<acme_call>",),
    tools=json_envelope_format(Envelope(), {"<acme_call>": "</acme_call>"}),
)
