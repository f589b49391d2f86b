"""Expiry of sessions."""

from units import SECONDS_PER_DAY


def expires_at(start, days):
    return start + days * SECONDS_PER_DAY
