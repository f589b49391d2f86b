"""A cache of decoded parts of requests, so that a turn does not decode the history again."""

from collections.abc import Callable, Sequence
from itertools import count, repeat
from typing import Any, TypeVar

from msgspec import Raw

from dovetail_protocols.body_prefixes import MIN_BODY_BYTES, BodyPrefixCache

T = TypeVar("T")
P = TypeVar("P")
CacheKey = tuple[str | int | bytes, ...]

DEFAULT_MAX_BYTES = 256 * 2**20

_BYTES_PER_JSON_BYTE = 4  # memory per byte of JSON: the key and the decoded value
_ENTRY_OVERHEAD_BYTES = 1000  # per entry, in addition to its content
_BODY_PREFIX_FRACTION = 4  # body prefixes may use 1/4 of the bytes


class DecodeCache:
    """Cache decoded messages, tools and system prompts by their bytes.

    `body_prefixes` caches the latest bodies of sessions, whose prefixes need no lookups at all.

    An agent repeats its history with every request. With the cache, a known message costs one
    lookup, and equal bytes return the identical objects while they are cached: values derived
    from a turn or from the tools can be cached by identity. They must not be modified.

    All tenants may share a cache, since an entry is found only with exactly the same bytes. The
    time of a decode can reveal at most that some client sent these bytes before; if that is not
    acceptable, use one cache per tenant.

    `max_bytes` limits the estimated size. Instead of a strict LRU order there are two generations
    of half the size: a hit moves an entry to the young generation, and when that is full, the old
    one is dropped. A hit therefore costs one lookup, and threads can share a cache without a
    lock: at worst a part is decoded twice, and both threads get the first result.
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
        """Decode a text, or a list of items together. `kind` names the decoder."""
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
        """Combine decoded parts. The same parts always return the same object.

        The entry holds references to the parts, so their identities cannot be reused.
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
