"""Intervals as (start, end) pairs."""


def merge(intervals):
    """Return the union of the intervals, sorted and without overlaps."""
    merged = []
    for start, end in intervals:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
