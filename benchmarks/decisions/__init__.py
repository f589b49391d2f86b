"""Measurements for `docs/decisions/`: one question per file, with ratios within one run."""
