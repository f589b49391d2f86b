"""A bounded mapping that evicts the least recently used entry first."""

from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Generic, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class LruCache(Generic[_K, _V]):
    """A mapping bounded by its number of entries, by their total size, or by both.

    `get` and `put` make an entry the most recently used; `peek` and `in` do not. A cache that is
    read with `peek` alone therefore evicts in the order in which its entries were put.

    `max_entries`: the maximum number of entries. None: unlimited.
    `max_size`: the maximum total size of the values, as measured by `size_of`. None: unlimited. A
    single value that exceeds it evicts every entry and then itself; to preserve the other entries,
    check the size before `put`.
    `size_of`: returns the size of a value, which must not change while the value is in the cache.
    If values grow, omit `max_size`, track the total in the caller and call `pop_oldest`.
    `on_evict`: called with each evicted entry after its removal; not called for entries that are
    replaced, popped or cleared. It must not put entries into the cache.

    Not safe for use by several threads at once.
    """

    __slots__ = ("_entries", "_max_entries", "_max_size", "_on_evict", "_size_of", "_total_size")

    def __init__(
        self,
        max_entries: int | None = None,
        *,
        max_size: int | None = None,
        size_of: Callable[[_V], int] | None = None,
        on_evict: Callable[[_K, _V], object] | None = None,
    ) -> None:
        if (max_size is None) != (size_of is None):
            raise ValueError("`max_size` and `size_of` must be given together")
        self._entries: OrderedDict[_K, _V] = OrderedDict()  # least recently used first
        self._max_entries = max_entries
        self._max_size = max_size
        self._size_of = size_of
        self._on_evict = on_evict
        self._total_size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: _K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[_K]:
        """Return the keys, least recently used first."""
        return iter(self._entries)

    def values(self) -> ValuesView[_V]:
        """Return the values, least recently used first."""
        return self._entries.values()

    def items(self) -> ItemsView[_K, _V]:
        """Return the entries, least recently used first."""
        return self._entries.items()

    def newest_first(self) -> Iterator[tuple[_K, _V]]:
        """Return the entries, most recently used first."""
        return reversed(self._entries.items())

    @property
    def total_size(self) -> int:
        """The sum of the sizes of all values; 0 without `size_of`."""
        return self._total_size

    def get(self, key: _K) -> _V | None:
        """Return the value of a key or None, and mark the entry as most recently used."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def peek(self, key: _K) -> _V | None:
        """Return the value of a key or None, without changing the order of eviction."""
        return self._entries.get(key)

    def put(self, key: _K, value: _V) -> None:
        """Set the value of a key, mark it as most recently used and enforce the limits."""
        if self._size_of is None:
            self._entries[key] = value
            self._entries.move_to_end(key)
        else:
            self.pop(key)
            self._entries[key] = value
            self._total_size += self._size_of(value)
        max_entries, max_size = self._max_entries, self._max_size
        while (max_entries is not None and len(self._entries) > max_entries) or (
            max_size is not None and self._total_size > max_size
        ):
            evicted = self.pop_oldest()
            if self._on_evict is not None:
                self._on_evict(*evicted)

    def pop(self, key: _K) -> _V | None:
        """Remove a key and return its value, or None."""
        value = self._entries.pop(key, None)
        if value is not None and self._size_of is not None:
            self._total_size -= self._size_of(value)
        return value

    def oldest(self) -> tuple[_K, _V] | None:
        """Return the least recently used entry, or None if there is none."""
        return next(iter(self._entries.items()), None)

    def pop_oldest(self) -> tuple[_K, _V]:
        """Remove and return the least recently used entry. Raises `KeyError` if there is none."""
        key, value = self._entries.popitem(last=False)
        if self._size_of is not None:
            self._total_size -= self._size_of(value)
        return key, value

    def demote(self, key: _K) -> None:
        """Make an entry the next to be evicted. Does nothing if the key is missing."""
        if key in self._entries:
            self._entries.move_to_end(key, last=False)

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._total_size = 0
