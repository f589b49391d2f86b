"""Step 3: a section of typed calls, each an invocation in tags."""

from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Edge, Mode, ToolFormat
from dovetail_parsers.shared_formats import TaggedFormat, raw_value

_BEGIN, _END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_CALL, _CALL_END = "<｜tool_call_begin｜>", "<｜tool_call_end｜>"

_INVOKE = TaggedFormat(
    section=(_CALL, _CALL_END),
    name=('<steptml:invoke name="', '">'),
    key='<steptml:parameter name="',
    values={'">': raw_value("</steptml:parameter>")},
    end="</steptml:invoke>",
    pad="",
).to_tool_format()

FAMILY = Family(
    name="step3",
    sample=(
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="get_weather"><steptml:parameter name="city">Paris'
        "</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>"
    ),
    tool_names=("step3",),
    pairs_with="step3",
    models={"*step3*": "step3"},
    template_markers=("<steptml:invoke",),
    tools=ToolFormat(
        modes={
            **_INVOKE.modes,
            "text": Mode(
                Channel.TEXT,
                on={_BEGIN: Edge("begun")},
                tolerate=_INVOKE.modes["section"].edges | {_CALL: Edge("kind")},
            ),
            "begun": Mode(Channel.GAP, on={_CALL: Edge("kind")}),
            "kind": Mode(Channel.GAP, on={"function<｜tool_sep｜>": Edge("section")}),
            "done": Mode(
                Channel.GAP,
                on={_CALL_END: Edge("ended")},
                tolerate=_INVOKE.modes["section"].edges,
            ),
            "ended": Mode(Channel.GAP, on={_CALL: Edge("kind"), _END: Edge("text")}),
        },
        orphans=(_END, _CALL_END),
    ),
)
