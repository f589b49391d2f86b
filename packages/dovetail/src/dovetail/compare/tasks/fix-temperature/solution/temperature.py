"""Convert temperatures."""


def convert(value: float, source: str, target: str) -> float:
    for unit in (source, target):
        if unit not in ("C", "F", "K"):
            raise ValueError(f"unknown unit {unit!r}")
    celsius = value
    if source == "F":
        celsius = (value - 32) * 5 / 9
    elif source == "K":
        celsius = value - 273.15
    if target == "F":
        return celsius * 9 / 5 + 32
    return celsius + 273.15 if target == "K" else celsius
