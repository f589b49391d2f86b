"""Roman numerals from 1 to 3999."""

SYMBOLS = [
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"),
    (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
]


def to_roman(number):
    """Return the numeral of a number. Raise ValueError if it is not in 1..3999."""
    if not 1 <= number <= 3999:
        raise ValueError(f"{number} is not in 1..3999")
    numeral = ""
    for value, symbol in SYMBOLS:
        numeral += symbol * (number // value)
        number %= value
    return numeral


def from_roman(numeral):
    """Return the number of a numeral. Raise ValueError for anything else, such as IIII."""
    rest, number = numeral, 0
    for value, symbol in SYMBOLS:
        while rest.startswith(symbol):
            number += value
            rest = rest[len(symbol) :]
    if rest or not number or number > 3999 or to_roman(number) != numeral:
        raise ValueError(f"{numeral!r} is not a Roman numeral")
    return number
