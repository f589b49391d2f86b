"""Billing by the started hour."""

from units import SECONDS_PER_HOUR


def started_hours(seconds):
    return -(-seconds // SECONDS_PER_HOUR)
