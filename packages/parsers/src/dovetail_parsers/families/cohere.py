"""Cohere Command R7B, A and later: an action with a JSON list; reasoning and text in tokens."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ReasoningFormat, ToolFormat
from dovetail_parsers.shared_formats import json_without_opener, more_calls, next_call

_FRAMES = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")

_ENVELOPE = Envelope(
    name=("tool_name", "name"),
    arguments=("parameters", "arguments"),
    id=("tool_call_id",),
    many=True,
    write_id=True,
)

FAMILY = Family(
    name="cohere_command3",
    sample=(
        "<|START_THINKING|>The user wants the weather.<|END_THINKING|><|START_ACTION|>"
        '[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}]'
        "<|END_ACTION|>"
    ),
    tool_names=("cohere_command3", "cohere_command4"),
    reasoning_names=("cohere_command3", "cohere_command4"),
    pairs_with="cohere_command3",
    models={"*command-a*": "cohere_command3", "*command-r7b*": "cohere_command3"},
    template_markers=("<|START_ACTION|>",),
    tools=ToolFormat(
        modes={
            "text": Mode(Channel.TEXT, on={"<|START_ACTION|>": Edge("calls")}),
            "calls": Mode(
                Channel.BODY,
                body=_ENVELOPE,
                end=Edge("done"),
            ),
            "done": Mode(
                Channel.GAP,
                on={"<|END_ACTION|>": Edge("text")},
                tolerate=more_calls("calls", "[", "{"),
            ),
            "more": next_call("calls", "[", "{"),
        },
        orphans=("<|END_ACTION|>", *_FRAMES),
        unwrapped=json_without_opener("calls", _ENVELOPE),
    ),
    reasoning=ReasoningFormat(
        openers=("<|START_THINKING|>",), closers=("<|END_THINKING|>",), frames=_FRAMES
    ),
)
