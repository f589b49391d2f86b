"""Turns that were served although they could not be announced to the store."""

from collections.abc import Awaitable, Callable

from dovetail.ledger.store import OpenTurn
from dovetail.storage.faults import StoreError

_MAX_TURNS = 10_000


class UnannouncedTurns:
    """Announces turns when the store is back. Until then lookups may miss them.

    `announce`: announces a turn. Raises StoreError if it fails.
    `withdraw`: withdraws the announcement of a turn that was stored or closed meanwhile.
    """

    __slots__ = ("_announce", "_turns", "_withdraw")

    def __init__(
        self,
        announce: Callable[[OpenTurn], Awaitable[None]],
        withdraw: Callable[[OpenTurn], Awaitable[None]],
    ) -> None:
        self._announce = announce
        self._withdraw = withdraw
        self._turns: dict[str, OpenTurn] = {}  # by id

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: OpenTurn) -> bool:
        """Add a turn. Returns whether another one was dropped, which is then never announced."""
        self._turns[turn.id] = turn
        if len(self._turns) <= _MAX_TURNS:
            return False
        del self._turns[next(iter(self._turns))]
        return True

    def discard(self, id: str) -> None:
        """Remove a turn that was stored or closed."""
        self._turns.pop(id, None)

    async def announce_all(self) -> None:
        """Announce the turns, until one fails."""
        for turn in list(self._turns.values()):
            try:
                await self._announce(turn)
            except StoreError:
                return
            if self._turns.pop(turn.id, None) is None:  # stored or closed meanwhile
                await self._withdraw(turn)
