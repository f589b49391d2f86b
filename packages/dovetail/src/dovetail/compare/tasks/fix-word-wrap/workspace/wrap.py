"""Wrap text."""


def wrap(text: str, width: int) -> list[str]:
    lines = []
    line = ""
    for word in text.split():
        if len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return lines
