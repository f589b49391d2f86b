"""The family tables as grammars for guided decoding."""

from dovetail_parsers.constraint.answer import Guide, constraint, guide

__all__ = ["Guide", "constraint", "guide"]
