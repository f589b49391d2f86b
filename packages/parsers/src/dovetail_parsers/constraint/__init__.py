"""The family tables as grammars for guided decoding."""

from dovetail_parsers.constraint.guided import GuidedGrammar, build_guided_grammar

__all__ = ["GuidedGrammar", "build_guided_grammar"]
