"""Check results and the number of elements that the search reads."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


MAX_READS = 40


class CountedList:
    """A sorted list that counts reads and raises after too many."""

    def __init__(self, values: list[int]) -> None:
        self.values, self.reads = values, 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        if self.reads > MAX_READS:
            raise RuntimeError(f"more than {MAX_READS} elements were read")
        return self.values[index]


def find_problem() -> str | None:
    from search import first_index

    lists = [[], [1], [1, 3], [1, 3, 3, 3, 5], [2] * 9, list(range(0, 2_000_000, 2))]
    for values in lists:
        for wanted in (-1, 0, 1, 2, 3, 4, 5, 6, 1_999_998, 1_999_999):
            expected = values.index(wanted) if len(values) < 10 and wanted in values else -1
            if len(values) > 10 and wanted % 2 == 0 and wanted >= 0:
                expected = wanted // 2
            found = first_index(CountedList(values), wanted)
            if found != expected:
                return f"{wanted} in {values[:9]}: {found}, expected {expected}"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
