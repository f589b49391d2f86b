"""Expiry of sessions."""


def expires_at(start, days):
    return start + days * 86400
