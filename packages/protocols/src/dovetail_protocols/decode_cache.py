"""A cache of decoded parts of requests, so that a history is not decoded with every turn."""

from collections.abc import Callable, Sequence
from itertools import count, repeat
from typing import Any, TypeVar

from msgspec import Raw

from dovetail_protocols.body_prefixes import MIN_BODY_BYTES, BodyPrefixCache

T = TypeVar("T")
P = TypeVar("P")
CacheKey = tuple[str | int | bytes, ...]

DEFAULT_MAX_BYTES = 256 * 2**20

_BYTES_PER_JSON_BYTE = 4  # bytes of memory for each byte of JSON: the key, and what was made of it
_ENTRY_OVERHEAD_BYTES = 1000  # bytes that an entry takes whatever is in it
_BODY_PREFIX_FRACTION = 4  # the part of all bytes that whole bodies may take


class DecodeCache:
    """Cache what messages, tools and system prompts decoded to, by their bytes.

    `body_prefixes` has the last bodies of sessions: their prefixes are not even looked up.

    An agent repeats its whole history with every request. With the cache a known message costs one
    look-up, and equal bytes give the identical objects while they are cached: whatever is derived
    from a turn or from the tools can be cached by their identity. They must not be changed.

    All tenants may share a cache: an entry is only found with the very same bytes. The time that
    a decode takes can reveal at most that somebody sent these bytes before; where that is too
    much, use one cache per tenant.

    `max_bytes` bounds what is held, by an estimate. Instead of a strict order of use there are two
    generations of half the size: what is used moves into the young one, and when that is full
    the old one goes. So a hit costs one look-up, and threads may share a cache without a lock: at
    worst a piece is decoded twice, and both get the first one's result.
    """

    __slots__ = ("_generation_bytes", "_old", "_young", "_young_bytes", "body_prefixes")

    def __init__(
        self, max_bytes: int = DEFAULT_MAX_BYTES, *, min_body_bytes: int = MIN_BODY_BYTES
    ) -> None:
        bodies = max_bytes // _BODY_PREFIX_FRACTION
        self.body_prefixes = BodyPrefixCache(bodies, min_body_bytes=min_body_bytes)
        self._generation_bytes = (max_bytes - bodies) // 2
        self._young_bytes = 0
        self._young: dict[CacheKey, Any] = {}
        self._old: dict[CacheKey, Any] = {}

    def get_or_decode(self, kind: str, source: str | Sequence[Raw], decode: Callable[[], T]) -> T:
        """Decode a text, or a list of items as a whole. `kind` names the decoder."""
        key: CacheKey = (kind, source) if isinstance(source, str) else (kind, *map(bytes, source))
        found: T | None = self._get(key)
        return self._put(key, decode()) if found is None else found

    def get_or_decode_each(
        self,
        kind: str,
        items: Sequence[Raw],
        decode: Callable[[int, Raw], T],
        *,
        indexed: bool,
        start: int = 0,
    ) -> list[T]:
        """Decode each of the items; `indexed` if the result depends on the item's index."""
        pieces = map(bytes, items)
        places = count(start)
        keys = list(zip(repeat(kind), places, pieces) if indexed else zip(repeat(kind), pieces))
        all_found: list[T | None] = list(map(self._young.get, keys))
        return [
            self._decode_at(start + at, keys[at], items[at], decode) if found is None else found
            for at, found in enumerate(all_found)
        ]

    def combine(self, kind: str, parts: tuple[P, ...], make: Callable[[tuple[P, ...]], T]) -> T:
        """Combine decoded parts: the same parts give the same object.

        The parts are held with it, so no other object can come to have their identity.
        """
        key: CacheKey = (kind, *map(id, parts))
        found: tuple[T, object] | None = self._get(key)
        return self._put(key, (make(parts), parts))[0] if found is None else found[0]

    def _decode_at(self, at: int, key: CacheKey, item: Raw, decode: Callable[[int, Raw], T]) -> T:
        found: T | None = self._get(key)
        return self._put(key, decode(at, item)) if found is None else found

    def _get(self, key: CacheKey) -> Any:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self._put(key, found)
        return found

    def _put(self, key: CacheKey, value: T) -> T:
        size = _ENTRY_OVERHEAD_BYTES + _BYTES_PER_JSON_BYTE * sum(
            len(part) for part in key if not isinstance(part, int)
        )
        if size > self._generation_bytes:
            return value
        if self._young_bytes + size > self._generation_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        self._young_bytes += size
        stored: T = self._young.setdefault(key, value)
        return stored
