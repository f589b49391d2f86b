"""Small functions."""


def shout(text: str) -> str:
    return text.upper() + "!"


def repeat(text: str, times: int) -> str:
    return text * times


def initials(name: str) -> str:
    return "".join(part[0] for part in name.split())
