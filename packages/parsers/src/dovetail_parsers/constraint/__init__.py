"""The family tables as grammars for guided decoding."""

from dovetail_parsers.constraint.guided import Guide, guide

__all__ = ["Guide", "guide"]
