"""Responses that one connection holds: the last few, each with all that came before it."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from weakref import WeakSet

import msgspec

from dovetail.responses.response import KeptResponse, weight

LAST = 32  # twice as many as a connection can have answered at once
_MOST_GONE = 1024  # responses that are deleted while one is made

Chain = tuple[KeptResponse, ...]


class Room:
    """How many bytes all connections may hold. Where they hold more, the one that was not used for
    longest holds nothing any more: its client is told so, and sends everything again.
    """

    __slots__ = ("_held", "_most_bytes", "weight")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[Local, int] = OrderedDict()
        self.weight = 0

    def taken(self, local: "Local", size: int) -> None:
        """This connection holds so many bytes now."""
        self.left(local)
        self._held[local] = size
        self.weight += size
        while self.weight > self._most_bytes:
            oldest = next(iter(self._held))
            self.left(oldest)
            oldest.forget()

    def left(self, local: "Local") -> None:
        """It holds nothing any more."""
        self.weight -= self._held.pop(local, 0)


class Local:
    """Found before what everybody can find, and gone with the connection.

    A conversation shares what its responses have in common, so it is held once.
    """

    __slots__ = ("_chains", "_held", "_most", "_places", "_room", "_weight")

    def __init__(self, most: int = LAST, room: Room | None = None) -> None:
        self._most = most
        self._room = room
        self._held: OrderedDict[str, Chain] = OrderedDict()
        self._chains: Counter[str] = Counter()  # of a response, in how many it stands
        self._weight = 0  # what is in several chains counts once
        self._places: WeakSet[Place] = WeakSet()  # of responses in the making

    def place(self) -> "Place":
        """A place for a response before it is known what it goes on from."""
        place = Place(self)
        self._places.add(place)
        return place

    def keep(self, before: Sequence[KeptResponse], response: KeptResponse) -> None:
        """Hold a response that goes on from these. Nobody fetches it here: items are enough."""
        self._drop(response.id)
        self._add((*before, msgspec.structs.replace(response, head=b"")))
        if len(self._held) > self._most:
            self._drop(self._least_of_use())
        if self._room is not None:
            self._room.taken(self, self._weight)

    def chain(self, id: str) -> Chain | None:
        """The response and all before it, the oldest first; None if it is not held."""
        found = self._held.get(id)
        if found is not None:
            self._held.move_to_end(id)
        return found

    def delete(self, tenant: str, id: str) -> None:
        """It was deleted: as in a store, nothing is gone on from that went on from it."""
        for place in list(self._places):
            place.delete(tenant, id)
        if id not in self._chains:
            return
        for last, chain in list(self._held.items()):
            if any(one.id == id and one.tenant == tenant for one in chain):
                self._drop(last)
        if self._room is not None:
            self._room.taken(self, self._weight)

    def forget(self) -> None:
        self._held.clear()
        self._chains.clear()
        self._weight = 0

    def close(self) -> None:
        """The connection is gone."""
        self.forget()
        if self._room is not None:
            self._room.left(self)

    def _least_of_use(self) -> str:
        """The oldest that was gone on from, if any was: resting lanes come back to theirs."""
        old = {chain[-2].id for chain in self._held.values() if len(chain) > 1}
        return next((id for id in self._held if id in old), next(iter(self._held)))

    def _add(self, chain: Chain) -> None:
        self._held[chain[-1].id] = chain
        for one in chain:
            self._chains[one.id] += 1
            if self._chains[one.id] == 1:
                self._weight += weight(one)

    def _drop(self, id: str) -> None:
        for one in self._held.pop(id, ()):
            self._chains[one.id] -= 1
            if not self._chains[one.id]:
                del self._chains[one.id]
                self._weight -= weight(one)


class Place:
    """Where a connection will hold a response that is being made.

    What was deleted since it was asked for may be what it goes on from: then it is not held.
    """

    __slots__ = ("__weakref__", "_gone", "_local")

    def __init__(self, local: Local) -> None:
        self._local: Local | None = local
        self._gone: set[tuple[str, str]] = set()

    def keep(self, before: Sequence[KeptResponse], response: KeptResponse) -> None:
        """Hold it, with all that it goes on from."""
        whole = not any((one.tenant, one.id) in self._gone for one in (*before, response))
        if self._local is not None and whole:
            self._local.keep(before, response)

    def delete(self, tenant: str, id: str) -> None:
        """It was deleted. Who deletes very many meanwhile has nothing held."""
        self._gone.add((tenant, id))
        if len(self._gone) > _MOST_GONE:
            self._gone.clear()
            self._local = None
