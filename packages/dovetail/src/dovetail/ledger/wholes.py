"""The token ids of whole prompts with their turns, for the sessions that are running."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable

from dovetail.ledger.cache import EntryKey
from dovetail.ledger.entry import LedgerEntry

_ARRAY_OVERHEAD_BYTES = 300  # the objects around the ids


class TokenIdCache:
    """A bounded cache, least recently used first. The arrays in it are not to be changed.

    Of each line only the last two are kept: one long session would fill the cache with its own
    past, and an older whole is the beginning of a newer one.
    """

    __slots__ = ("_bytes", "_ids", "_max_bytes", "_parents")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._ids: OrderedDict[EntryKey, array[int]] = OrderedDict()
        self._parents: dict[EntryKey, EntryKey] = {}

    def get(self, tenant: str, id: str) -> "array[int] | None":
        """The whole of an entry."""
        key = (tenant, id)
        found = self._ids.get(key)
        if found is not None:
            self._ids.move_to_end(key)
        return found

    def add(self, entry: LedgerEntry, token_ids: "array[int]") -> None:
        """Keep it. The parent's is the next to go: a session seldom returns to an older turn."""
        key = (entry.tenant, entry.id)
        size = _array_bytes(token_ids)
        if key in self._ids or size > self._max_bytes:
            return
        self._ids[key] = token_ids
        self._bytes += size
        if entry.parent is not None:
            parent = self._parents[key] = (entry.tenant, entry.parent)
            self._evict(self._parents.get(parent))
            if parent in self._ids:
                self._ids.move_to_end(parent, last=False)
        while self._bytes > self._max_bytes:
            self._evict(next(iter(self._ids)))

    def _evict(self, key: EntryKey | None) -> None:
        dropped = self._ids.pop(key, None) if key is not None else None
        if dropped is not None and key is not None:
            self._bytes -= _array_bytes(dropped)
            self._parents.pop(key, None)


def extend_token_ids(base: "array[int]", entries: Iterable[LedgerEntry]) -> "array[int] | None":
    """The whole of the last entry: each grew from the one before, the first from `base`.

    One array grows and is cut: a token is copied once, however long the line. None where an entry
    keeps more than there is.
    """
    whole = base
    for entry in entries:
        if entry.keep > len(whole):
            return None
        if whole is base:
            whole = base[: entry.keep]  # a copy: the base is not ours to change
        else:
            del whole[entry.keep :]
        whole.frombytes(entry.suffix)
        whole.frombytes(entry.generated)
    return whole


def _array_bytes(token_ids: "array[int]") -> int:
    return _ARRAY_OVERHEAD_BYTES + len(token_ids) * token_ids.itemsize
