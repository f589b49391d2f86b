"""Grammars for guided decoding, generated from the family tables."""

from dovetail_parsers.constraint.guided import GuidedGrammar, build_guided_grammar

__all__ = ["GuidedGrammar", "build_guided_grammar"]
