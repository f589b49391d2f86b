"""Prefill prompts before their requests arrive, on replicas without other work."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dovetail.engines.engine import EngineRequest
from dovetail.engines.token_stream import collect_token_ids
from dovetail.routing.prefix_index import PrefixIndex, salted_request
from dovetail.routing.replica import Replica

#: Creates the request that is expected next; returns None if there is none.
RequestFactory = Callable[[], Awaitable[EngineRequest | None]]

_log = logging.getLogger(__name__)


class PromptWarmer:
    """Warms at most one prompt per replica at a time.

    `warmed_prompts`: the number of prompts that were prefilled.
    """

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self.warmed_prompts = 0

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    def warm(self, replica: Replica, create_request: RequestFactory) -> None:
        """Prefill a prompt on a replica, instead of the one that it prefills now, if any."""
        previous = self._tasks.get(replica)
        if previous is not None:
            previous.cancel()
        self._tasks[replica] = asyncio.create_task(self._warm(replica, create_request))

    async def cancel(self, replica: Replica) -> None:
        """Stop warming a replica: requests take precedence."""
        task = self._tasks.pop(replica, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _warm(self, replica: Replica, create_request: RequestFactory) -> None:
        try:
            request = await create_request()
            if request is None or replica.active_requests or not replica.is_available:
                return
            self._index.record(replica.index, await self._index.find(request))
            with replica.track_request():
                await collect_token_ids(replica.engine, salted_request(self._index, request))
            self.warmed_prompts += 1
        except Exception as error:  # warming is optional: no request waits for it
            _log.info(
                "warming_failed", extra={"fields": {"reason": f"{type(error).__name__}: {error}"}}
            )
        finally:
            if self._tasks.get(replica) is asyncio.current_task():
                del self._tasks[replica]
