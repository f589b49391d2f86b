"""Roman numerals from 1 to 3999."""


def to_roman(number):
    """Return the numeral of a number. Raise ValueError if it is not in 1..3999."""
    raise NotImplementedError


def from_roman(numeral):
    """Return the number of a numeral. Raise ValueError for anything else, such as IIII."""
    raise NotImplementedError
