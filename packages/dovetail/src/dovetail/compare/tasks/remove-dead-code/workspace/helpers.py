"""Small functions."""


def shout(text: str) -> str:
    return text.upper() + "!"


def whisper(text: str) -> str:
    return text.lower()


def repeat(text: str, times: int) -> str:
    return text * times


def reverse(text: str) -> str:
    return text[::-1]


def initials(name: str) -> str:
    return "".join(part[0] for part in name.split())
