"""Check page counts, the last page and pages out of range."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


COUNTS = [(0, 3, 1), (1, 3, 1), (3, 3, 1), (4, 3, 2), (9, 3, 3), (10, 3, 4)]


def find_problem() -> str | None:
    from paginate import page, page_count

    for items, size, expected in COUNTS:
        found = page_count(list(range(items)), size)
        if found != expected:
            return f"page_count of {items} items by {size} is {found}, expected {expected}"
    if page([1, 2, 3, 4, 5], 3, 2) != [5]:
        return "the last, incomplete page is wrong"
    if page([], 1, 2) != []:
        return "the only page of an empty list must be empty"
    for number in (0, -1, 4):
        try:
            page([1, 2, 3, 4, 5], number, 2)
        except IndexError:
            continue
        return f"page {number} of 3 does not raise IndexError"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
