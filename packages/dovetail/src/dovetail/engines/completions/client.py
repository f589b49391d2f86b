"""A client of one server that implements the completions protocol."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.engines.completions.constraints import constraint_field
from dovetail.engines.completions.errors import error_from_status, is_priority_rejection
from dovetail.engines.completions.frames import CompletionFrameReader
from dovetail.engines.completions.generate import (
    GENERATE_PATH,
    encode_generate_request,
    session_headers,
)
from dovetail.engines.engine import EngineRequest, TokenSink
from dovetail.engines.redaction import Redactor
from dovetail.engines.sampling import explicit_sampling_fields, optional_sampling_fields
from dovetail.engines.token_ids import PromptEncoder, pack_token_ids
from dovetail.engines.token_stream import TokenStreamReader
from dovetail.net.http_client import (
    ClientRequest,
    ClientResponse,
    ConnectionGroup,
    Endpoint,
    Timeouts,
    send_request,
)
from dovetail_model import ClientError, DovetailError, EngineUnavailable, Sampling
from dovetail_tokenizers import Tokenizer

_FIXED_FIELDS: Mapping[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
    "add_special_tokens": False,
    "skip_special_tokens": False,
}

_json = msgspec.json.Encoder()


def encode_request(
    request: EngineRequest,
    prompt_encoder: PromptEncoder,
    model: str,
    *,
    with_priority: bool,
    binary_prompt: bool = False,
    extra_fields: Mapping[str, Any] | None = None,
) -> bytes:
    """Encode the request as JSON. The server's or model's defaults apply to unset sampling fields.

    Stop strings are not sent: the caller checks for them. `with_priority`: the server supports
    priorities, where a lower number runs first. `binary_prompt`: send the prompt as bytes and
    request a response with only ids, which Dovetail's own servers support. `extra_fields` are added
    unchanged.
    """
    prompt: dict[str, Any] = (
        {"prompt_bytes": pack_token_ids(request.prompt), "ids_only": True}
        if binary_prompt
        else {
            "prompt": prompt_encoder.encode(
                request.prompt, request.session, ends_session=request.ends_session
            )
        }
    )
    fields: dict[str, Any] = {
        "model": model,
        **prompt,
        "max_tokens": max(request.max_tokens, 1),
        "request_id": request.id,
        **_FIXED_FIELDS,
        **_sampling_fields(request.sampling),
        **_scheduling_fields(request, with_priority),
        **(extra_fields or {}),
    }
    if request.stop_ids:
        fields["stop_token_ids"] = sorted(request.stop_ids)
    if request.constraint is not None:
        fields["structured_outputs"] = constraint_field(request.constraint)
    return _json.encode(fields)


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    fields = explicit_sampling_fields(sampling, "seed")
    fields |= optional_sampling_fields(sampling, "min_tokens")
    if sampling.logprobs is not None:
        fields["logprobs"] = sampling.logprobs
        # Several tokens can have the same text (parts of characters), and only one would be
        # reported.
        fields["return_tokens_as_token_ids"] = True
    return fields


def _scheduling_fields(request: EngineRequest, with_priority: bool) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    if request.priority and with_priority:
        hints["priority"] = -request.priority
    if request.cache_salt:
        hints["cache_salt"] = request.cache_salt
    if request.session:
        hints["session_id"] = request.session
    return hints


COMPLETIONS_PATH = "/v1/completions"
#: A server sends no data while it prefills a long prompt.
DEFAULT_TIMEOUTS = Timeouts(connect=10.0, read=600.0)

_log = logging.getLogger(__name__)


class CompletionsClient:
    """Requests completions of one model.

    `server_name`: the name of the server in error messages.
    `binary_prompt`: the server is one of Dovetail's own, which accepts prompts as bytes.
    `tokenizer`: decodes tokens of logprobs that the server identifies by their ids.
    `extra_fields`: added to every request.
    `uses_generate`: requests go to vLLM's token API instead.
    `reports_cached_tokens`: whether the last response reported cached tokens; None before the first
    response.
    """

    __slots__ = (
        "_binary_prompt",
        "_connections",
        "_endpoint",
        "_extra_fields",
        "_model",
        "_prompt_encoder",
        "_redactor",
        "_server_name",
        "_supports_priority",
        "_timeouts",
        "_tokenizer",
        "reports_cached_tokens",
        "uses_generate",
    )

    def __init__(  # noqa: PLR0913 - all but the first two are keyword-only
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
        self._redactor = Redactor(endpoint)
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
        self.uses_generate = False

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive.

        Cancelling closes the connection, which aborts the generation.
        """
        with self._redactor.clean_errors():
            with_priority = self._supports_priority and request.priority != 0
            try:
                await self._stream(request, sink, with_priority)
            except ClientError as error:
                if not (with_priority and is_priority_rejection(error)):
                    raise
                self._disable_priority(error)
                await self._stream(request, sink, False)

    def abort_all(self) -> None:
        """Abort every running stream. Each of them fails with an error."""
        self._connections.abort_all()

    async def _stream(self, request: EngineRequest, sink: TokenSink, with_priority: bool) -> None:
        client_request = self._build_request(request, with_priority)
        async with send_request(self._endpoint, client_request, self._connections) as response:
            if response.status == 200:
                await self._read_stream(request, sink, response)
                return
            # Before the message is truncated, which could leave a part of a secret.
            content = self._redactor.clean_bytes(await response.read())
        if response.status != 404 or not self.uses_generate:
            raise self._status_error(response.status, content)
        self.uses_generate = False  # the server was restarted without this API
        await self._stream(request, sink, with_priority)

    async def _read_stream(
        self, request: EngineRequest, sink: TokenSink, response: ClientResponse
    ) -> None:
        reader = self._create_reader(request)
        stream = TokenStreamReader(reader.read, sink)
        try:
            await response.stream_to(stream.push, stream.drain)
        except EngineUnavailable:
            if not reader.is_finished:
                # otherwise the output is complete, and only the number of cached tokens is unknown
                raise
        finally:
            if reader.is_finished:
                self.reports_cached_tokens = reader.reported_cached_tokens
                response.skip_rest()
        if not stream.finished:
            sink.push(reader.finish())

    def _create_reader(self, request: EngineRequest) -> CompletionFrameReader:
        return CompletionFrameReader(request, self._server_name, self._tokenizer)

    def _status_error(self, status: int, content: bytes) -> DovetailError:
        """Return the error for a response without a stream."""
        return error_from_status(self._server_name, status, content)

    def _build_request(self, request: EngineRequest, with_priority: bool) -> ClientRequest:
        encoder, extra_fields = self._prompt_encoder, self._extra_fields
        if self.uses_generate:
            body = encode_generate_request(
                request,
                encoder,
                self._model,
                with_priority=with_priority,
                extra_fields=extra_fields,
            )
            headers = session_headers(request)
            return ClientRequest("POST", GENERATE_PATH, body, headers, self._timeouts)
        body = encode_request(
            request,
            encoder,
            self._model,
            with_priority=with_priority,
            binary_prompt=self._binary_prompt,
            extra_fields=extra_fields,
        )
        return ClientRequest("POST", COMPLETIONS_PATH, body, timeouts=self._timeouts)

    def _disable_priority(self, error: DovetailError) -> None:
        """Stop sending priorities to a server that does not schedule by priority."""
        self._supports_priority = False
        _log.warning("priority_disabled", extra={"fields": {"reason": error.message}})
