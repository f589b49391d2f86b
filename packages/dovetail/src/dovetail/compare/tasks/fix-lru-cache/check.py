"""Check which entries a full cache evicts."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


def find_problem() -> str | None:
    from lru import LruCache

    cache = LruCache(2)
    cache.put("a", 1)
    cache.put("b", None)
    cache.get("a")
    cache.put("c", 3)
    if cache.get("a") != 1 or cache.get("b", "gone") != "gone":
        return "a read entry was evicted instead of the least recently used one"
    cache.put("a", 4)
    if cache.get("c") != 3 or cache.get("a") != 4:
        return "overwriting a key evicted another entry"
    cache = LruCache(2)
    cache.put("a", 1)
    cache.put("b", None)
    cache.get("missing")
    cache.put("a", 2)
    cache.put("c", 3)
    if cache.get("a") != 2 or cache.get("b", "gone") != "gone":
        return "overwriting an entry does not count as a use"
    return None if cache.get("missing", 7) == 7 else "the default is not returned"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
