"""A mapping that holds only so many keys, and forgets the one set longest ago."""

from collections import OrderedDict
from typing import Generic, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class BoundedMap(Generic[_K, _V]):
    """What may be forgotten, because it can be found out again."""

    __slots__ = ("_items", "_max_items")

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._items: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K) -> _V | None:
        """The value last set."""
        return self._items.get(key)

    def set(self, key: _K, value: _V) -> None:
        """Remember it as the newest."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._max_items:
            self._items.popitem(last=False)
