"""MiniMax-M3 without the token before its tags."""

from dovetail_parsers.families.minimax_m3 import tree_format
from dovetail_parsers.family import Family

FAMILY = Family(
    name="minimax_m3_nom",
    sample='<tool_call>\n<invoke name="get_weather"><city>Paris</city></invoke>\n</tool_call>',
    tool_names=("minimax_m3_nom",),
    pairs_with="minimax_m3",
    tools=tree_format(""),
)
