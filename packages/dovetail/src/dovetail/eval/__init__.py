"""Acceptance: the same agent tasks on somebody's endpoint, with Dovetail before it and without."""
