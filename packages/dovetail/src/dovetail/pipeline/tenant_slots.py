"""Share a small number of slots among tenants, so that none can delay the others for long."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TenantSlots:
    """Limit concurrent work. Waiting tenants take turns, and none holds all slots.

    count: Slots of all tenants together.
    per_tenant: Slots that one tenant may hold.
    """

    __slots__ = ("_free", "_per_tenant", "_running", "_waiting")

    def __init__(self, count: int, per_tenant: int) -> None:
        self._free = count
        self._per_tenant = per_tenant
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next tenant first

    @asynccontextmanager
    async def hold(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a slot, and hold it for the duration of the context."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._assign()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(tenant)  # the slot was assigned just before
            else:
                self._withdraw(tenant, turn)
            raise
        try:
            yield
        finally:
            self._release(tenant)

    def _assign(self) -> None:
        while self._free:
            tenant = next((t for t in self._waiting if self._running[t] < self._per_tenant), None)
            if tenant is None:
                return
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns  # behind the others
            if not turn.done():
                self._free -= 1
                self._running[tenant] += 1
                turn.set_result(None)

    def _release(self, tenant: str) -> None:
        self._free += 1
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        self._assign()

    def _withdraw(self, tenant: str, turn: "asyncio.Future[None]") -> None:
        turns = self._waiting.get(tenant)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[tenant]
