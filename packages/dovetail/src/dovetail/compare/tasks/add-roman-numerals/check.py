"""Check every number, and invalid numerals."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


KNOWN = {1: "I", 4: "IV", 9: "IX", 14: "XIV", 40: "XL", 1990: "MCMXC", 3999: "MMMCMXCIX"}
INVALID = ["", "IIII", "VX", "IC", "MMMM", "iv", "I I", "IXI", "ABC"]


def find_problem() -> str | None:
    from roman import from_roman, to_roman

    for number, numeral in KNOWN.items():
        if to_roman(number) != numeral:
            return f"to_roman({number}) is {to_roman(number)!r}, expected {numeral!r}"
    for number in range(1, 4000):
        if from_roman(to_roman(number)) != number:
            return f"from_roman does not reverse to_roman for {number}"
    calls = [(to_roman, one) for one in (0, -1, 4000)] + [(from_roman, one) for one in INVALID]
    for function, argument in calls:
        try:
            result = function(argument)
        except ValueError:
            continue
        return f"{function.__name__}({argument!r}) is {result!r} instead of a ValueError"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
