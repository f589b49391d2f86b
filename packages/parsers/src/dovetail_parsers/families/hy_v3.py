"""Hunyuan 3: GLM's pairs in a section, with a separator after the name.

Released checkpoints add a suffix to every tag (`<tool_call:opensource>`); older models write a list
of JSON calls in the section. Both are parsed, neither is written.
"""

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import (
    CallAction,
    Channel,
    Edge,
    Mode,
    ReasoningFormat,
    ToolFormat,
    UnwrappedCall,
)

SUFFIX = ":opensource"


def _mode(channel: Channel, edges: dict[str, Edge]) -> Mode:
    """Return a mode with these edges, and the same edges with suffixed tags."""
    suffixed = {marker[:-1] + SUFFIX + ">": edge for marker, edge in edges.items()}
    return Mode(channel, on=edges, tolerate=suffixed)


def _parameters(opens: CallAction, closes: CallAction) -> Mode:
    return _mode(
        Channel.GAP,
        {"<arg_key>": Edge("key", opens), "</tool_call>": Edge("done", closes, pad="\n")},
    )


TOOLS = ToolFormat(
    modes={
        "text": Mode(
            Channel.TEXT,
            on={"<tool_calls>": Edge("section", pad="\n")},
            tolerate={
                f"<tool_calls{SUFFIX}>": Edge("section"),
                "<tool_call>": Edge("name"),
                f"<tool_call{SUFFIX}>": Edge("name"),
            },
        ),
        "section": Mode(
            Channel.GAP,
            on={"<tool_call>": Edge("name")},
            tolerate={f"<tool_call{SUFFIX}>": Edge("name"), "[": Edge("list", peek=True)},
        ),
        "name": _mode(Channel.NAME, {"<tool_sep>": Edge("head", pad="\n")}),
        "head": _parameters(CallAction.OPEN, CallAction.OPEN | CallAction.CLOSE),
        "args": _parameters(CallAction.NONE, CallAction.CLOSE),
        "key": _mode(Channel.KEY, {"</arg_key>": Edge("between", pad="\n")}),
        "between": _mode(Channel.GAP, {"<arg_value>": Edge("value")}),
        "value": _mode(Channel.VALUE, {"</arg_value>": Edge("args", pad="\n")}),
        "list": Mode(Channel.BODY, body=Envelope(many=True), end=Edge("done")),
        "done": _mode(Channel.GAP, {"<tool_call>": Edge("name"), "</tool_calls>": Edge("text")}),
    },
    orphans=("</tool_calls>", f"</tool_calls{SUFFIX}>"),
    unwrapped=UnwrappedCall("name", (("", "<tool_sep>"), ("", f"<tool_sep{SUFFIX}>"))),
)

FAMILY = Family(
    name="hy_v3",
    sample=(
        "<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n"
        "<arg_value>Paris</arg_value>\n</tool_call>\n</tool_calls>"
    ),
    tool_names=("hy_v3", "hunyuan"),
    reasoning_names=("hy_v3", "hunyuan"),
    pairs_with="hy_v3",
    models={"*hy3*": "hy_v3", "*hunyuan-3*": "hy_v3"},
    template_markers=("tool_sep",),
    tools=TOOLS,
    reasoning=ReasoningFormat(
        openers=("<think>", f"<think{SUFFIX}>"), closers=("</think>", f"</think{SUFFIX}>")
    ),
)
