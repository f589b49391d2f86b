"""Convert temperatures."""


def convert(value: float, source: str, target: str) -> float:
    if source == "F":
        value = value - 32 * 5 / 9
    if source == "K":
        value = value - 273
    if target == "F":
        return value * 9 / 5 + 32
    if target == "K":
        return value + 273
    return value
