"""Functions on series of numbers."""


def total(values: list[float]) -> float:
    return sum(values)
