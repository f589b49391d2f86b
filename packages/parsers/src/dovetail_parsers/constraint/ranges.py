"""Integers between bounds, digit by digit."""

from dovetail_parsers.constraint.nodes import Chars, Node, choice, repeat, sequence, text

_MAX_DIGITS = 40  # of a number without an upper bound


def integer_between(low: int | None, high: int | None) -> Node | None:
    """Return the integers from `low` to `high`, as written in JSON; None if there are none."""
    ways: list[Node] = []
    if low is None or low < 0:
        smallest = 1 if high is None or high >= 0 else -high
        largest = None if low is None else -low
        if largest is None or largest >= smallest:
            ways.append(sequence(text("-"), _counting(smallest, largest)))
    if (low is None or low <= 0) and (high is None or high >= 0):
        ways.append(text("0"))
    if high is None or high > 0:
        smallest = max(1, low or 1)
        if high is None or high >= smallest:
            ways.append(_counting(smallest, high))
    return choice(*ways) if ways else None


def _counting(low: int, high: int | None) -> Node:
    """Return the integers from `low`, at least 1, to `high`."""
    first = len(str(low))
    if high is None:
        more = repeat(_digits("0", "9"), first, _MAX_DIGITS - 1)
        longer = sequence(_digits("1", "9"), more)
        return choice(_same_length(str(low), "9" * first), longer)
    ways = [
        _same_length(
            str(low) if size == first else "1" + "0" * (size - 1),
            str(high) if size == len(str(high)) else "9" * size,
        )
        for size in range(first, len(str(high)) + 1)
    ]
    return choice(*ways)


def _same_length(low: str, high: str) -> Node:
    """Return the numbers between two numbers with the same number of digits."""
    if not low:
        return text("")
    rest = len(low) - 1
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return sequence(_digits(low[0], high[0]), _any_digits(rest))
    if low[0] == high[0]:
        return sequence(text(low[0]), _same_length(low[1:], high[1:]))
    ways = [sequence(text(low[0]), _same_length(low[1:], "9" * rest))]
    if ord(high[0]) - ord(low[0]) > 1:
        middle = _digits(chr(ord(low[0]) + 1), chr(ord(high[0]) - 1))
        ways.append(sequence(middle, _any_digits(rest)))
    ways.append(sequence(text(high[0]), _same_length("0" * rest, high[1:])))
    return choice(*ways)


def _any_digits(count: int) -> Node:
    return repeat(_digits("0", "9"), count, count) if count else text("")


def _digits(low: str, high: str) -> Node:
    return Chars(((low, high),))
