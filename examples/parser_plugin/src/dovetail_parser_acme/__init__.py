"""The output format of the Acme models: JSON calls between `<acme_call>` tags, `<why>` reasoning.

You write only the tables. The parser, the writer, detection by model id and chat
template, and the grammars for guided decoding are derived from them.
"""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import ReasoningFormat
from dovetail_parsers.shared_formats import json_envelope_format

FAMILY = Family(
    name="acme",
    sample='<acme_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</acme_call>',
    tool_names=("acme",),
    reasoning_names=("acme",),
    pairs_with="acme",
    models={"*acme-*": "acme"},
    template_markers=("<acme_call>",),
    tools=json_envelope_format(Envelope(), {"<acme_call>": "</acme_call>"}),
    reasoning=ReasoningFormat(openers=("<why>",), closers=("</why>",)),
)
