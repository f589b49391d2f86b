"""Free text that is not empty, where a notation can only say what free text does not hold."""

from dovetail_parsers.constraint.nodes import Chars, FreeText, Node, any_of, choice, sequence


def non_empty_text(never: tuple[str, ...], not_first: str = "") -> Node:
    """Some text that holds none of `never`, and begins with no character of `not_first`.

    Where it begins as something forbidden does, the second character settles that it is not.
    """
    starts = "".join(dict.fromkeys(marker[0] for marker in never))
    seconds = "".join(dict.fromkeys(marker[1:2] for marker in never))
    ends = "".join(marker for marker in never if len(marker) == 1)
    risky = "".join(char for char in starts if char not in not_first + ends)
    rest = FreeText(never=never)
    plain = sequence(_none_of(not_first + starts), rest)
    if not risky:
        return plain
    return choice(plain, sequence(any_of(risky), _none_of(starts + seconds), rest))


def _none_of(chars: str) -> Chars:
    """No class is empty: a character that no output holds stands for none."""
    return Chars(tuple((char, char) for char in dict.fromkeys(chars or "\0")), negated=True)
