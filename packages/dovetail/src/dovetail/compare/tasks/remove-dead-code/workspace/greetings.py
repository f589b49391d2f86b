"""Greetings."""

import helpers


def greet(name: str) -> str:
    return helpers.shout("hello " + name) + helpers.repeat("*", 3) + helpers.initials(name)
