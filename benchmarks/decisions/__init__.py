"""Measurements behind `docs/decisions/`: one question each, answered as a ratio within one run."""
