"""Functions on series of numbers."""


def total(values: list[float]) -> float:
    return sum(values)


def moving_average(values: list[float], size: int) -> list[float]:
    if size < 1:
        raise ValueError(f"size must be >= 1, got {size}")
    return [sum(values[at : at + size]) / size for at in range(len(values) - size + 1)]
