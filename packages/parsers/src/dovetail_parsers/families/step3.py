"""Step 3: a section of typed calls, each an invocation in tags."""

from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Mode, To, ToolFormat
from dovetail_parsers.shared_formats import Tagged, raw

_BEGIN, _END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_CALL, _CALL_END = "<｜tool_call_begin｜>", "<｜tool_call_end｜>"

_INVOKE = Tagged(
    section=(_CALL, _CALL_END),
    name=('<steptml:invoke name="', '">'),
    key='<steptml:parameter name="',
    values={'">': raw("</steptml:parameter>")},
    end="</steptml:invoke>",
    pad="",
).format()

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
    marks=("<steptml:invoke",),
    tools=ToolFormat(
        modes={
            **_INVOKE.modes,
            "text": Mode(Channel.TEXT, on={_BEGIN: To("begun")}, tolerate={_CALL: To("kind")}),
            "begun": Mode(Channel.GAP, on={_CALL: To("kind")}),
            "kind": Mode(Channel.GAP, on={"function<｜tool_sep｜>": To("section")}),
            "done": Mode(Channel.GAP, on={_CALL_END: To("ended")}),
            "ended": Mode(Channel.GAP, on={_CALL: To("kind"), _END: To("text")}),
        },
        orphans=(_END, _CALL_END),
    ),
)
