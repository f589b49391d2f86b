"""What the library's loop generates, on its way to who asked for it.

The loop runs in a thread of its own and calls back in the server's, which needs the interpreter
just as the loop does. So little is done there for a token, and when it is done is chosen.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from dovetail.engines.engine import Listener, TokenDelta
from dovetail.engines.sampling import BY_ID
from dovetail_model import TokenLogprob


class Delivery:
    """One request's outputs, told in the very call that brings them.

    Each output tells all tokens so far: while the listener has no room, only the last one is kept.
    `probable` is what the loop has noted of tokens that are not told yet, where that is asked for.
    """

    __slots__ = (
        "_deaf",
        "_ends",
        "_fault",
        "_found",
        "_kept",
        "_listener",
        "_probable",
        "_told",
        "_waiter",
        "finished",
    )

    def __init__(
        self,
        listener: Listener,
        ends: Sequence[int],
        found: Callable[[], int],
        probable: list[Any] | None = None,
    ) -> None:
        self._listener = listener
        self._probable = probable
        self._ends = ends
        self._found = found
        self._told = 0
        self._deaf = False  # whether the listener has no room, or is not to be told more
        self._kept: Any = None
        self.finished = False  # whether the library has done with the request
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def take(self, output: Any) -> None:
        """Runs for every token. It never raises: others' outputs come in the same call."""
        if self._deaf:
            self._kept = output
            return
        try:
            self._tell(output)
        except Exception as fault:
            self._fault, self._deaf = fault, True
            self._wake(None)

    async def end(self) -> str | None:
        """Returns after the last output, or when no more is wanted: why the request failed."""
        while True:
            reason = await self._waiter
            if self._fault is not None:
                raise self._fault
            if not self._deaf:
                return reason
            self._waiter = asyncio.get_running_loop().create_future()
            if not await self._listener.wait():
                return None
            self._deaf = False
            output, self._kept = self._kept, None
            if output is not None:
                self.take(output)

    def close(self) -> None:
        """Tells no more. An output may still be on its way."""
        self._deaf = True

    def _tell(self, output: Any) -> None:
        self.finished = finished = output.is_finished()
        if output.error is not None:
            self._wake(str(output.error))
            return
        ids = output.generated_tokens[self._told :]
        cached = None if self._told else self._found()
        self._told += len(ids)
        finish = self._finish(ids) if finished else None
        logprobs = () if self._probable is None else self._take_logprobs(self._probable, ids)
        room = self._listener.hear(TokenDelta(ids, logprobs, finish, cached))
        if finished:
            self._wake(None)
        elif not room:
            self._deaf = True
            self._wake(None)

    def _take_logprobs(self, probable: list[Any], ids: list[int]) -> tuple[TokenLogprob, ...]:
        """Those of these ids. The loop may have noted more already, at the end."""
        noted = probable[: len(ids)]
        del probable[: len(ids)]
        return tuple(
            TokenLogprob(_named(id), logprob, tuple((_named(one), value) for one, value in best))
            for id, (logprob, best) in zip(ids, noted, strict=True)
        )

    def _finish(self, ids: list[int]) -> Any:
        return "stop" if ids and ids[-1] in self._ends else "length"

    def _wake(self, reason: str | None) -> None:
        if not self._waiter.done():
            self._waiter.set_result(reason)


def _named(id: int) -> str:
    """Whoever asked has the texts."""
    return f"{BY_ID}{id}"


class Postponing:
    """Lets the loop hand tokens over while the device computes the next ones.

    Handed over when they come, the server's thread would tell them while the loop prepares its next
    step, and the device would wait for both. Only the first token of a request is handed over at
    once: somebody waits for it.
    """

    __slots__ = ("_deliver", "_deliver_batch", "_due")

    def __init__(self, processor: Any, router: Any) -> None:
        self._due: list[Any] = []
        self._deliver = router.deliver
        self._deliver_batch = router.deliver_batch
        router.deliver, router.deliver_batch = self.deliver, self.deliver_batch
        transfers = processor.inputs_and_outputs
        prepare, retrieve = processor.prepare_next_batch, transfers.retrieve_device_outputs

        def prepared() -> bool:
            ready: bool = prepare()
            if not ready:  # there is no next step
                self.flush()
            return ready

        def retrieved() -> None:
            self.flush()
            retrieve()  # which waits for the device

        processor.prepare_next_batch = prepared
        transfers.retrieve_device_outputs = retrieved

    def deliver(self, output: Any) -> None:
        """A failure. What came before it goes before it."""
        self.flush()
        self._deliver(output)

    def deliver_batch(self, outputs: list[Any]) -> None:
        first = [output for output in outputs if len(output.generated_tokens) < 2]
        if first:
            self._deliver_batch(first)
            outputs = [output for output in outputs if len(output.generated_tokens) > 1]
        self._due += outputs

    def flush(self) -> None:
        if self._due:
            due, self._due = self._due, []
            self._deliver_batch(due)


def postpone(manager: Any) -> Postponing | None:
    """Arranges it, where there is a device to wait for and the library is one that we know.

    Where the processor itself computes there is no better time than at once.
    """
    processor, router = manager.batch_processor, getattr(manager, "output_router", None)
    transfers = getattr(processor, "inputs_and_outputs", None)
    if getattr(transfers, "compute_stream", None) is None:
        return None
    known = (
        hasattr(processor, "prepare_next_batch")
        and hasattr(transfers, "retrieve_device_outputs")
        and hasattr(router, "deliver")
        and hasattr(router, "deliver_batch")
    )
    return Postponing(processor, router) if known else None
