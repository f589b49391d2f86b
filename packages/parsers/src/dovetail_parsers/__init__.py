"""Model output in, one ordered stream of events out: reasoning, text and tool calls together."""

from dovetail_parsers.constraint import Guide, guide
from dovetail_parsers.parser import Parser, markers, opens_thought, parse
from dovetail_parsers.registry import families, resolve
from dovetail_parsers.writer import write

__all__ = [
    "Guide",
    "Parser",
    "families",
    "guide",
    "markers",
    "opens_thought",
    "parse",
    "resolve",
    "write",
]
