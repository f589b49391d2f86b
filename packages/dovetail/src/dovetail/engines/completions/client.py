"""One server of the completions protocol, as a source of deltas."""

import logging
from collections.abc import Mapping
from typing import Any

from dovetail.engines.completions.body import encode_request
from dovetail.engines.completions.errors import error_from_status, is_priority_rejection
from dovetail.engines.completions.frames import CompletionFrameReader
from dovetail.engines.engine import EngineRequest, TokenSink
from dovetail.engines.telling import TokenStreamReader
from dovetail.engines.token_ids import PromptEncoder
from dovetail.net.http_client import (
    ClientRequest,
    ConnectionGroup,
    Endpoint,
    Timeouts,
    send_request,
)
from dovetail_model import ClientError, DovetailError, EngineUnavailable
from dovetail_tokenizers import Tokenizer

COMPLETIONS_PATH = "/v1/completions"
#: A long prompt is read without a sign of life.
DEFAULT_TIMEOUTS = Timeouts(connect=10.0, read=600.0)

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
        "_extra_fields",
        "_connections",
        "_model",
        "_binary_prompt",
        "_timeouts",
        "_supports_priority",
        "_prompt_encoder",
        "_tokenizer",
        "_server_name",
        "reports_cached_tokens",
    )

    def __init__(  # noqa: PLR0913 - all but the first two are said by name
        self,
        endpoint: Endpoint,
        model: str,
        *,
        server_name: str = "vLLM",
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        binary_prompt: bool = False,
        tokenizer: Tokenizer | None = None,
        extra_fields: Mapping[str, Any] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._server_name = server_name
        self._timeouts = timeouts
        self._binary_prompt = binary_prompt
        self._tokenizer = tokenizer
        self._extra_fields = extra_fields or {}
        self._supports_priority = True
        self._prompt_encoder = PromptEncoder()
        self._connections = ConnectionGroup()
        self.reports_cached_tokens: bool | None = None

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Deltas as they come. Leaving it drops the connection, at which the server stops."""
        with_priority = self._supports_priority and request.priority != 0
        try:
            await self._stream(request, sink, with_priority)
        except ClientError as error:
            if not (with_priority and is_priority_rejection(error)):
                raise
            self._disable_priority(error)
            await self._stream(request, sink, False)

    def abort_all(self) -> None:
        """Breaks off every answer that still comes: each of them ends with an error."""
        self._connections.abort_all()

    async def _stream(self, request: EngineRequest, sink: TokenSink, with_priority: bool) -> None:
        asked = encode_request(
            request,
            self._prompt_encoder,
            self._model,
            with_priority=with_priority,
            binary_prompt=self._binary_prompt,
            extra_fields=self._extra_fields,
        )
        call = ClientRequest("POST", COMPLETIONS_PATH, asked, timeouts=self._timeouts)
        reader = CompletionFrameReader(request, self._server_name, self._tokenizer)
        telling = TokenStreamReader(reader.read, sink)
        async with send_request(self._endpoint, call, self._connections) as reply:
            if reply.status != 200:
                raise error_from_status(self._server_name, reply.status, await reply.read())
            try:
                await reply.stream_to(telling.push, telling.drain)
            except EngineUnavailable:
                if not reader.is_finished:
                    raise  # else the answer was whole; only what was cached is not known
            finally:
                if reader.is_finished:
                    self.reports_cached_tokens = reader.reported_cached_tokens
            if not telling.finished:
                sink.push(reader.finish())

    def _disable_priority(self, error: DovetailError) -> None:
        """Once: a server that does not schedule by priority is not told one again."""
        self._supports_priority = False
        _log.warning("priorities_not_taken", extra={"fields": {"reason": error.message}})
