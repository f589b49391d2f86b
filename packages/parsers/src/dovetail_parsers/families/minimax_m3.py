"""MiniMax-M3: a token before every tag; parameters are tags, nested ones included."""

from dovetail_parsers.arguments.tree import Tree
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Act, Channel, Mode, ReasoningFormat, To, ToolFormat

TOKEN = "]<]minimax[>["


def tree_format(token: str) -> ToolFormat:
    """The format with this token before its tags; models without it write the bare tags."""
    begin, end = f"{token}<tool_call>", f"{token}</tool_call>"
    invoke = f'{token}<invoke name="'
    return ToolFormat(
        modes={
            "text": Mode(
                Channel.TEXT, on={begin: To("section", pad="\n")}, tolerate={invoke: To("name")}
            ),
            "section": Mode(Channel.GAP, on={invoke: To("name")}),
            "name": Mode(Channel.NAME, on={'">': To("head")}),
            "head": Mode(Channel.GAP, on={f"{token}<": To("args", Act.OPEN, peek=True)}),
            "args": Mode(
                Channel.BODY,
                body=Tree(token, call="invoke", section="tool_call"),
                end=To("done", pad="\n"),
            ),
            "done": Mode(
                Channel.GAP,
                on={invoke: To("name"), end: To("text")},
                tolerate={f"{token}</invoke>": To("done")},
            ),
        },
        orphans=(end, f"{token}</invoke>"),
    )


FAMILY = Family(
    name="minimax_m3",
    sample=(
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">'
        "]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[</invoke>\n"
        "]<]minimax[>[</tool_call>"
    ),
    tool_names=("minimax_m3", "minimax-m3"),
    reasoning_names=("minimax_m3",),
    pairs_with="minimax_m3",
    models={"*minimax-m3*": "minimax_m3"},
    marks=(TOKEN, "<mm:think>"),
    tools=tree_format(TOKEN),
    reasoning=ReasoningFormat(openers=("<mm:think>",), closers=("</mm:think>",)),
)
