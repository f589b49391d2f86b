"""InternLM 2 and Intern-S1: a plugin action with a JSON call."""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat
from dovetail_parsers.shared_formats import json_without_opener, more_calls, next_call

FAMILY = Family(
    name="internlm",
    sample=(
        '<|action_start|><|plugin|>{"name": "get_weather", "parameters": {"city": "Paris"}}'
        "<|action_end|>"
    ),
    tool_names=("internlm", "interns1"),
    pairs_with="interns1",
    models={"*internlm*": None, "*intern-s1*": "interns1"},
    template_markers=("<|action_start|>",),
    tools=ToolFormat(
        modes={
            "text": Mode(Channel.TEXT, on={"<|action_start|>": Edge("action")}),
            "action": Mode(Channel.GAP, on={"<|plugin|>": Edge("call")}),
            "call": Mode(
                Channel.BODY,
                body=Envelope(arguments=("parameters", "arguments")),
                end=Edge("done"),
            ),
            "done": Mode(
                Channel.GAP,
                on={"<|action_end|>": Edge("text")},
                tolerate=more_calls("call", "{", "["),
            ),
            "more": next_call("call", "{", "["),
        },
        orphans=("<|action_end|>",),
        unwrapped=json_without_opener("call", Envelope()),
    ),
)
