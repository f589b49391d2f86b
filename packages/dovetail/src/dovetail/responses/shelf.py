"""Responses in memory, up to a number of bytes. What was not used for longest goes first."""

from collections import OrderedDict

from dovetail.responses.response import KeptResponse, weight

Key = tuple[str, str]


class Shelf:
    """By tenant and id. The time is that of the last use, in seconds of anybody's clock."""

    __slots__ = ("_held", "_max_bytes", "weight")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[Key, tuple[float, KeptResponse]] = OrderedDict()
        self.weight = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, tenant: str, id: str) -> KeptResponse | None:
        found = self._held.get((tenant, id))
        return None if found is None else found[1]

    def add(self, response: KeptResponse, now: float = 0.0) -> None:
        """Hold it, in place of an older form of it. One that is larger than all may be is not."""
        key = (response.tenant, response.id)
        self.drop(*key)
        if weight(response) > self._max_bytes:
            return
        self._held[key] = (now, response)
        self.weight += weight(response)
        while self.weight > self._max_bytes:
            self.drop(*next(iter(self._held)))

    def touch(self, tenant: str, id: str, now: float = 0.0) -> bool:
        """It was used again. False: it is not here."""
        found = self._held.get((tenant, id))
        if found is None:
            return False
        self._held[tenant, id] = (now, found[1])
        self._held.move_to_end((tenant, id))
        return True

    def drop(self, tenant: str, id: str) -> bool:
        found = self._held.pop((tenant, id), None)
        if found is not None:
            self.weight -= weight(found[1])
        return found is not None

    def drop_before(self, oldest: float) -> None:
        """Drop all that were not used since."""
        while self._held:
            key, (used, _) = next(iter(self._held.items()))
            if used >= oldest:
                return
            self.drop(*key)
