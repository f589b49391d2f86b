"""Intervals as (start, end) pairs."""


def merge(intervals):
    """Return the union of the intervals, sorted and without overlaps."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
