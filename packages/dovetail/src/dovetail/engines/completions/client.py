"""One server of the completions protocol, as a source of deltas."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from dovetail.engines.completions.body import body
from dovetail.engines.completions.faults import error_of_status, refuses_priority
from dovetail.engines.completions.frames import FrameReader
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.wire import Call, Endpoint, Lines, Patience, send
from dovetail_model import ClientError, DovetailError, EngineUnavailable

PATH = "/v1/completions"
#: A long prompt is read without a sign of life.
PATIENCE = Patience(connect=10.0, silence=600.0)

_log = logging.getLogger(__name__)


class CompletionsClient:
    """Asks for completions of one model. `who` is what errors call the server.

    `tells_cached` is whether an answer so far told what was cached; None before the first answer.
    `extra` are fields that every request gets.
    """

    __slots__ = (
        "_endpoint",
        "_extra",
        "_lines",
        "_model",
        "_patience",
        "_priority",
        "_who",
        "tells_cached",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        *,
        who: str = "vLLM",
        patience: Patience = PATIENCE,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._who = who
        self._patience = patience
        self._extra = extra or {}
        self._priority = True
        self._lines = Lines()
        self.tells_cached: bool | None = None

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        """Deltas as they come. Closing it drops the connection, at which the server stops."""
        with_priority = self._priority and request.priority != 0
        try:
            async with aclosing(self._answer(request, with_priority)) as deltas:
                async for delta in deltas:
                    yield delta
            return
        except ClientError as error:
            if not (with_priority and refuses_priority(error)):
                raise
            self._note_refusal(error)
        async with aclosing(self._answer(request, False)) as deltas:
            async for delta in deltas:
                yield delta

    def drop(self) -> None:
        """Breaks off every answer that still comes: each of them ends with an error."""
        self._lines.drop()

    async def _answer(
        self, request: EngineRequest, with_priority: bool
    ) -> AsyncGenerator[TokenDelta]:
        asked = body(request, self._model, priority=with_priority, extra=self._extra)
        call = Call("POST", PATH, asked, patience=self._patience)
        reader = FrameReader(request, self._who)
        async with send(self._endpoint, call, self._lines) as reply:
            if reply.status != 200:
                raise error_of_status(self._who, reply.status, await reply.read())
            try:
                async with aclosing(reply.payloads()) as batches:
                    async for payloads in batches:
                        delta = reader.read(payloads)
                        if delta is not None:
                            yield delta
                            if delta.finish is not None:
                                return
                yield reader.end()
            except EngineUnavailable:
                if not reader.ended:
                    raise
                yield reader.end()  # the answer was whole; only what was cached is not known
            finally:
                if reader.ended:
                    self.tells_cached = reader.cached_told

    def _note_refusal(self, error: DovetailError) -> None:
        """Once: a server that does not schedule by priority is not told one again."""
        self._priority = False
        _log.warning("priorities_not_taken", extra={"fields": {"reason": error.message}})
