"""Ernie 4.5: Hermes calls; visible text is in a separate element."""

from dovetail_parsers.families.hermes import FAMILY as HERMES
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import ReasoningFormat

FAMILY = Family(
    name="ernie45",
    sample='<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    tool_names=("ernie45",),
    reasoning_names=("ernie45",),
    pairs_with="ernie45",
    models={"*ernie-4.5*": "ernie45"},
    template_markers=("<response>", "<tool_call>", "<think>"),
    tools=HERMES.tools,
    reasoning=ReasoningFormat(
        openers=("<think>",),
        closers=("</think>",),
        pads=("\n", "\n", "\n\n"),
        frames=("<response>", "</response>"),
    ),
)
