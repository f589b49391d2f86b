"""Responses in memory, up to a number of bytes. What was not used for longest goes first."""

from collections import OrderedDict

from dovetail.responses.response import StoredResponse, response_size

ResponseKey = tuple[str, str]


class ResponseCache:
    """By tenant and id. The time is that of the last use, in seconds of anybody's clock."""

    __slots__ = ("_entries", "_max_bytes", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[ResponseKey, tuple[float, StoredResponse]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, tenant: str, id: str) -> StoredResponse | None:
        found = self._entries.get((tenant, id))
        return None if found is None else found[1]

    def put(self, response: StoredResponse, now: float = 0.0) -> None:
        """Hold it, in place of an older form of it. One that is larger than all may be is not."""
        key = (response.tenant, response.id)
        self.remove(*key)
        if response_size(response) > self._max_bytes:
            return
        self._entries[key] = (now, response)
        self.size_bytes += response_size(response)
        while self.size_bytes > self._max_bytes:
            self.remove(*next(iter(self._entries)))

    def touch(self, tenant: str, id: str, now: float = 0.0) -> bool:
        """It was used again. False: it is not here."""
        found = self._entries.get((tenant, id))
        if found is None:
            return False
        self._entries[tenant, id] = (now, found[1])
        self._entries.move_to_end((tenant, id))
        return True

    def remove(self, tenant: str, id: str) -> bool:
        found = self._entries.pop((tenant, id), None)
        if found is not None:
            self.size_bytes -= response_size(found[1])
        return found is not None

    def remove_older(self, oldest: float) -> None:
        """Drop all that were not used since."""
        while self._entries:
            key, (used, _) = next(iter(self._entries.items()))
            if used >= oldest:
                return
            self.remove(*key)
