"""Check that baskets share neither lists nor items."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


def find_problem() -> str | None:
    from basket import Basket

    first, second = Basket(), Basket()
    first.add("tea", 10)
    if second.items:
        return "an item of one basket appears in another"
    reduced = first.with_discount(20)
    if reduced.total() != 8:
        return f"the reduced total is {reduced.total()}, expected 8"
    if first.total() != 10:
        return "with_discount changed the original basket"
    reduced.add("cup", 2)
    if len(first.items) != 1:
        return "an item of the reduced basket appears in the original"
    source = [{"name": "pot", "price": 5}]
    copy = Basket(source)
    copy.add("lid", 1)
    return "the list that was passed in was changed" if len(source) != 1 else None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
