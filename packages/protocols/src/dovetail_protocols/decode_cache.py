"""What pieces of requests decoded to, so that a history is not decoded anew with every turn."""

from collections.abc import Callable, Sequence
from itertools import count, repeat
from typing import Any, TypeVar

from msgspec import Raw

from dovetail_protocols.body_prefixes import Beginnings

T = TypeVar("T")
P = TypeVar("P")
Key = tuple[str | int | bytes, ...]

MAX_BYTES = 256 * 2**20

_HELD = 4  # bytes of memory for each byte of JSON: the key, and what was made of it
_ENTRY = 1000  # bytes that an entry takes whatever is in it
_BEGINNINGS = 4  # the part of all bytes that whole bodies may take


class Memory:
    """Remembers what messages, tools and system prompts decoded to, by their bytes.

    `beginnings` has the last bodies of sessions: what they begin with is not even looked up.

    An agent repeats its whole history with every request. With a memory a known message costs one
    look-up, and equal bytes give the identical objects for as long as they are held: whatever is
    derived from a turn or from the tools can be kept by their identity. Nobody may change them.

    A memory knows nothing of who asked. All tenants may share one: it answers only to whoever
    sends the very same bytes. What it could tell at most, by the time a decode takes, is that
    somebody sent these bytes before; where that is too much, keep one for each tenant.

    `max_bytes` bounds what is held, by an estimate. Instead of a strict order of use there are two
    generations of half the size: what is used moves into the young one, and when that is full
    the old one goes. So a hit costs one look-up, and threads may share a memory without a lock: at
    worst a piece is decoded twice, and both get the first one's result.
    """

    __slots__ = ("_filled", "_half", "_old", "_young", "beginnings")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        bodies = max_bytes // _BEGINNINGS
        self.beginnings = Beginnings(bodies)
        self._half = (max_bytes - bodies) // 2
        self._filled = 0
        self._young: dict[Key, Any] = {}
        self._old: dict[Key, Any] = {}

    def recall(self, kind: str, given: str | Sequence[Raw], read: Callable[[], T]) -> T:
        """What a text, or all of some items, reads as. `kind` names the reader that asks."""
        key: Key = (kind, given) if isinstance(given, str) else (kind, *map(bytes, given))
        found: T | None = self._found(key)
        return self._keep(key, read()) if found is None else found

    def recall_each(
        self,
        kind: str,
        items: Sequence[Raw],
        read: Callable[[int, Raw], T],
        *,
        placed: bool,
        start: int = 0,
    ) -> list[T]:
        """What each of the items reads as; `placed` where that depends on its index."""
        pieces = map(bytes, items)
        places = count(start)
        keys = list(zip(repeat(kind), places, pieces) if placed else zip(repeat(kind), pieces))
        all_found: list[T | None] = list(map(self._young.get, keys))
        return [
            self._read_at(start + at, keys[at], items[at], read) if found is None else found
            for at, found in enumerate(all_found)
        ]

    def combine(self, kind: str, parts: tuple[P, ...], make: Callable[[tuple[P, ...]], T]) -> T:
        """What is made of recalled parts: from the same objects, the same object.

        The parts are held with it, so no other object can come to have their identity.
        """
        key: Key = (kind, *map(id, parts))
        found: tuple[T, object] | None = self._found(key)
        return self._keep(key, (make(parts), parts))[0] if found is None else found[0]

    def _read_at(self, at: int, key: Key, item: Raw, read: Callable[[int, Raw], T]) -> T:
        found: T | None = self._found(key)
        return self._keep(key, read(at, item)) if found is None else found

    def _found(self, key: Key) -> Any:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self._keep(key, found)
        return found

    def _keep(self, key: Key, value: T) -> T:
        size = _ENTRY + _HELD * sum(len(part) for part in key if not isinstance(part, int))
        if size > self._half:
            return value
        if self._filled + size > self._half:
            self._old, self._young, self._filled = self._young, {}, 0
        self._filled += size
        kept: T = self._young.setdefault(key, value)
        return kept
