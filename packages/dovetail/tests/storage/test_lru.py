"""LruCache: the order of use, eviction, and both limits."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.storage.lru import LruCache


def filled(*keys: str, max_entries: int | None = None) -> LruCache[str, int]:
    cache: LruCache[str, int] = LruCache(max_entries)
    for number, key in enumerate(keys):
        cache.put(key, number)
    return cache


@pytest.mark.parametrize(
    ("use", "remaining"),
    [
        (lambda cache: cache.get("a"), "acd"),
        (lambda cache: cache.put("a", 7), "acd"),
        (lambda cache: cache.peek("a"), "bcd"),
        (lambda cache: "a" in cache, "bcd"),
        (lambda cache: cache.oldest(), "bcd"),
        (lambda cache: cache.get("unknown"), "bcd"),
        (lambda cache: cache.demote("c"), "abd"),
        (lambda cache: cache.demote("unknown"), "bcd"),
        (lambda cache: cache.pop("b"), "acd"),
    ],
)
def test_oldest_entry_is_evicted(
    use: Callable[[LruCache[str, int]], object], remaining: str
) -> None:
    cache = filled("a", "b", "c", max_entries=3)
    use(cache)
    cache.put("d", 9)
    assert sorted(cache) == list(remaining)


def test_entries_are_listed_in_the_order_of_their_use() -> None:
    cache = filled("a", "b", "c")
    cache.get("a")
    assert list(cache) == ["b", "c", "a"]
    assert list(cache.values()) == [1, 2, 0]
    assert list(cache.items()) == [("b", 1), ("c", 2), ("a", 0)]
    assert list(cache.newest_first()) == [("a", 0), ("c", 2), ("b", 1)]
    assert cache.oldest() == ("b", 1)
    assert cache.pop_oldest() == ("b", 1)
    cache.clear()
    assert (len(cache), cache.oldest()) == (0, None)
    with pytest.raises(KeyError):
        cache.pop_oldest()


def test_falsy_values_are_values() -> None:
    cache: LruCache[str, int] = LruCache(max_size=3, size_of=lambda value: value + 1)
    for key in "abc":
        cache.put(key, 0)
    assert cache.get("a") == 0
    cache.put("d", 0)
    assert list(cache) == ["c", "a", "d"]
    assert cache.pop("c") == 0
    assert cache.total_size == 2


def test_value_larger_than_the_bound_empties_the_cache() -> None:
    cache: LruCache[str, bytes] = LruCache(max_size=10, size_of=len)
    cache.put("small", b"12345")
    cache.put("large", b"x" * 11)
    assert (len(cache), cache.total_size) == (0, 0)


def test_on_evict_is_called_for_evicted_entries_only() -> None:
    evicted: list[tuple[str, bytes]] = []
    cache: LruCache[str, bytes] = LruCache(
        2, max_size=10, size_of=len, on_evict=lambda key, value: evicted.append((key, value))
    )
    cache.put("a", b"1")
    cache.put("a", b"22")  # replaced
    cache.put("b", b"1")
    cache.pop("b")
    cache.put("c", b"1")
    assert evicted == []
    cache.put("d", b"1")
    assert evicted == [("a", b"22")]
    cache.put("e", b"x" * 10)
    assert evicted == [("a", b"22"), ("c", b"1"), ("d", b"1")]
    cache.pop_oldest()
    cache.put("f", b"1")
    cache.clear()
    assert len(evicted) == 3


def test_max_size_requires_size_of() -> None:
    with pytest.raises(ValueError, match="together"):
        LruCache[str, bytes](max_size=10)
    with pytest.raises(ValueError, match="together"):
        LruCache[str, bytes](size_of=len)


class Model:
    """The same mapping as a list of entries, least recently used first."""

    def __init__(self, max_entries: int | None, max_size: int | None) -> None:
        self.entries: list[tuple[int, int]] = []
        self.evicted: list[tuple[int, int]] = []
        self.max_entries = max_entries
        self.max_size = max_size

    @property
    def size(self) -> int:
        return sum(value for _, value in self.entries)

    def peek(self, key: int) -> int | None:
        return dict(self.entries).get(key)

    def get(self, key: int) -> int | None:
        value = self.pop(key)
        if value is not None:
            self.entries.append((key, value))
        return value

    def put(self, key: int, value: int) -> None:
        self.pop(key)
        self.entries.append((key, value))
        while (self.max_entries is not None and len(self.entries) > self.max_entries) or (
            self.max_size is not None and self.size > self.max_size
        ):
            self.evicted.append(self.entries.pop(0))

    def pop(self, key: int) -> int | None:
        value = self.peek(key)
        self.entries = [entry for entry in self.entries if entry[0] != key]
        return value

    def pop_oldest(self) -> tuple[int, int]:
        return self.entries.pop(0)

    def demote(self, key: int) -> None:
        value = self.pop(key)
        if value is not None:
            self.entries.insert(0, (key, value))


KEYS, BOUNDS = st.integers(0, 6), st.none() | st.integers(0, 20)
STEPS = st.lists(
    st.tuples(st.just("put"), KEYS, st.integers(0, 12))
    | st.tuples(st.sampled_from(["get", "peek", "pop", "demote"]), KEYS)
    | st.tuples(st.just("pop_oldest"))
)


@given(BOUNDS, BOUNDS, STEPS)
def test_behaves_as_a_list_ordered_by_use(
    max_entries: int | None, max_size: int | None, steps: list[tuple[object, ...]]
) -> None:
    model, evicted = Model(max_entries, max_size), list[tuple[int, int]]()
    cache: LruCache[int, int] = LruCache(
        max_entries,
        max_size=max_size,
        size_of=None if max_size is None else int,
        on_evict=lambda key, value: evicted.append((key, value)),
    )
    for name, *arguments in steps:
        if name == "pop_oldest" and not model.entries:
            continue
        expected = getattr(model, str(name))(*arguments)
        assert getattr(cache, str(name))(*arguments) == expected
        assert list(cache.items()) == model.entries
        assert evicted == model.evicted
        assert cache.total_size == (0 if max_size is None else model.size)
