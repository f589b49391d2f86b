"""A mapping that holds only so many keys, and forgets the one set longest ago."""

from collections import OrderedDict
from typing import Generic, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class Recent(Generic[_K, _V]):
    """What may be forgotten, because it can be found out again."""

    __slots__ = ("_items", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K) -> _V | None:
        """The value last set."""
        return self._items.get(key)

    def set(self, key: _K, value: _V) -> None:
        """Remember it as the newest."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._most:
            self._items.popitem(last=False)
