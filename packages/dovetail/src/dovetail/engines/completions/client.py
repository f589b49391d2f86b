"""One server of the completions protocol, as a source of deltas."""

import logging
from collections.abc import Mapping
from typing import Any

from dovetail.engines.completions.body import body
from dovetail.engines.completions.errors import error_of_status, refuses_priority
from dovetail.engines.completions.frames import FrameReader
from dovetail.engines.engine import EngineRequest, Listener
from dovetail.engines.telling import Telling
from dovetail.engines.token_ids import Spelling
from dovetail.net.http_client import ClientRequest, Endpoint, ConnectionGroup, Timeouts, send_request
from dovetail_model import ClientError, DovetailError, EngineUnavailable
from dovetail_tokenizers import Tokenizer

PATH = "/v1/completions"
#: A long prompt is read without a sign of life.
PATIENCE = Timeouts(connect=10.0, read=600.0)

_log = logging.getLogger(__name__)


class CompletionsClient:
    """Asks for completions of one model. `who` is what errors call the server.

    `tells_cached` is whether an answer so far told what was cached; None before the first answer.
    `packed` says that the server is one of our own, which is told a prompt as bytes. The
    `tokenizer` spells tokens of logprobs that the server names by their ids. `extra` are fields
    that every request gets.
    """

    __slots__ = (
        "_endpoint",
        "_extra",
        "_lines",
        "_model",
        "_packed",
        "_patience",
        "_priority",
        "_spelling",
        "_tokenizer",
        "_who",
        "tells_cached",
    )

    def __init__(  # noqa: PLR0913 - all but the first two are said by name
        self,
        endpoint: Endpoint,
        model: str,
        *,
        who: str = "vLLM",
        patience: Timeouts = PATIENCE,
        packed: bool = False,
        tokenizer: Tokenizer | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._who = who
        self._patience = patience
        self._packed = packed
        self._tokenizer = tokenizer
        self._extra = extra or {}
        self._priority = True
        self._spelling = Spelling()
        self._lines = ConnectionGroup()
        self.tells_cached: bool | None = None

    async def generate(self, request: EngineRequest, listener: Listener) -> None:
        """Deltas as they come. Leaving it drops the connection, at which the server stops."""
        with_priority = self._priority and request.priority != 0
        try:
            await self._answer(request, listener, with_priority)
        except ClientError as error:
            if not (with_priority and refuses_priority(error)):
                raise
            self._note_refusal(error)
            await self._answer(request, listener, False)

    def drop(self) -> None:
        """Breaks off every answer that still comes: each of them ends with an error."""
        self._lines.abort_all()

    async def _answer(
        self, request: EngineRequest, listener: Listener, with_priority: bool
    ) -> None:
        asked = body(
            request,
            self._spelling,
            self._model,
            priority=with_priority,
            packed=self._packed,
            extra=self._extra,
        )
        call = ClientRequest("POST", PATH, asked, timeouts=self._patience)
        reader = FrameReader(request, self._who, self._tokenizer)
        telling = Telling(reader.read, listener)
        async with send_request(self._endpoint, call, self._lines) as reply:
            if reply.status != 200:
                raise error_of_status(self._who, reply.status, await reply.read())
            try:
                await reply.stream_to(telling.take, telling.wait)
            except EngineUnavailable:
                if not reader.ended:
                    raise  # else the answer was whole; only what was cached is not known
            finally:
                if reader.ended:
                    self.tells_cached = reader.cached_told
            if not telling.over:
                listener.hear(reader.end())

    def _note_refusal(self, error: DovetailError) -> None:
        """Once: a server that does not schedule by priority is not told one again."""
        self._priority = False
        _log.warning("priorities_not_taken", extra={"fields": {"reason": error.message}})
