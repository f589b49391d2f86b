"""MiniMax-M3: a token before every tag; parameters are tags, including nested ones."""

from dovetail_parsers.arguments.tree import TagTree
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import CallAction, Channel, Edge, Mode, ReasoningFormat, ToolFormat
from dovetail_parsers.shared_formats import quote_variants

TOKEN = "]<]minimax[>["


def tree_format(token: str) -> ToolFormat:
    """Return the format with this token before its tags; models without it write bare tags."""
    begin, end = f"{token}<tool_call>", f"{token}</tool_call>"
    invoke = f'{token}<invoke name="'
    names = list(enumerate(quote_variants((invoke, '">'))))
    calls = {m[0]: Edge(f"name{i or ''}") for i, m in names}
    return ToolFormat(
        modes={
            "text": Mode(Channel.TEXT, on={begin: Edge("section", pad="\n")}, tolerate=calls),
            "section": Mode(Channel.GAP, on={invoke: Edge("name")}, tolerate=calls),
            **{f"name{i or ''}": Mode(Channel.NAME, on={m[1]: Edge("head")}) for i, m in names},
            "head": Mode(Channel.GAP, on={f"{token}<": Edge("args", CallAction.OPEN, peek=True)}),
            "args": Mode(
                Channel.BODY,
                body=TagTree(token, call="invoke", section="tool_call"),
                end=Edge("done", pad="\n"),
            ),
            "done": Mode(
                Channel.GAP,
                on={invoke: Edge("name"), end: Edge("text")},
                tolerate=calls | {f"{token}</invoke>": Edge("done")},
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
    template_markers=(TOKEN, "<mm:think>"),
    tools=tree_format(TOKEN),
    reasoning=ReasoningFormat(openers=("<mm:think>",), closers=("</mm:think>",)),
)
