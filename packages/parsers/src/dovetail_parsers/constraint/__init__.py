"""The family tables as grammars for guided decoding."""

from dovetail_parsers.constraint.answer import constraint

__all__ = ["constraint"]
