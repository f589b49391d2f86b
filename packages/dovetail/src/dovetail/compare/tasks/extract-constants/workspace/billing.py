"""Billing by the started hour."""


def started_hours(seconds):
    return -(-seconds // 3600)
