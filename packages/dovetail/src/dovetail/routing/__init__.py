"""Which replica generates, what happens when one dies, and what is warmed between turns."""

from dovetail.routing.pool import Pool

__all__ = ["Pool"]
