"""Parse model output into one ordered stream of events: reasoning, text and tool calls."""

from dovetail_parsers.constraint import GuidedGrammar, build_guided_grammar
from dovetail_parsers.parser import Parser, markers, opens_reasoning, parse
from dovetail_parsers.registry import default_retention, families, resolve_family
from dovetail_parsers.writer import write_message

__all__ = [
    "GuidedGrammar",
    "Parser",
    "build_guided_grammar",
    "default_retention",
    "families",
    "markers",
    "opens_reasoning",
    "parse",
    "resolve_family",
    "write_message",
]
