"""Durations."""

import re

PATTERN = re.compile(r"(?:(\d+)d)?\s*(?:(\d+)h)?\s*(?:(\d+)m)?\s*(?:(\d+)s)?")


def parse_duration(text):
    """Return the seconds of a duration such as 1h30m."""
    plain = text.strip()
    if plain.isascii() and plain.isdigit():
        return int(plain)
    match = PATTERN.fullmatch(plain)
    if not plain or match is None:
        raise ValueError(f"{text!r} is not a duration")
    days, hours, minutes, seconds = (int(one or 0) for one in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
