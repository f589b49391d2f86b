"""An upstream that renders and parses itself. Its events are mapped, not parsed again.

Turns are not exact here, because the rendered prompt and the sampled tokens are not known. The
model's output order is preserved as far as the upstream's API can express it; the rest is counted.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from dovetail.engines.engine import EngineCapabilities, EngineHealth, RemoteModel
from dovetail.engines.openai.adaptations import (
    RequestAdaptations,
    drop_limit,
    dropped_fields,
    is_limit_too_large,
)
from dovetail.engines.openai.discovery import (
    ReasoningFieldResult,
    find_context_length,
    list_models,
    log_probe_result,
    parse_model_list,
    probe_custom_tools,
    probe_reasoning_field,
    unknown_result,
)
from dovetail.engines.openai.errors import UpstreamRejection, error_from_rejection, parse_rejection
from dovetail.engines.openai.options import OpenAIOptions
from dovetail.engines.openai.raw_text import AssistantTurnWriter, ModelSyntax, RawTextReader
from dovetail.engines.openai.response_reader import UpstreamResponseReader
from dovetail.engines.openai.tool_calls import (
    DOVETAIL_OWNER,
    ToolNameRestorer,
    call_id_format,
    rewrite_call_ids,
)
from dovetail.engines.redaction import Redactor
from dovetail.engines.timeouts import DISCOVERY_TIMEOUTS
from dovetail.engines.token_ids import FRAME_ERRORS
from dovetail.net.http_client import (
    ClientRequest,
    ClientResponse,
    Endpoint,
    Timeouts,
    fetch,
    send_request,
)
from dovetail_model import DovetailError, EngineError, Event, Request
from dovetail_protocols import (
    ChatReader,
    ResponsesReader,
    ToolNames,
    UpstreamApi,
    UpstreamDialect,
    UpstreamRequest,
    build_chat_request,
    build_responses_request,
)

API_PATHS: dict[UpstreamApi, str] = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
READERS: dict[UpstreamApi, type[ChatReader | ResponsesReader]] = {
    "chat": ChatReader,
    "responses": ResponsesReader,
}
MAX_PROBES = 3
MAX_SESSION_ID_CHARS = 512  # servers reject longer headers
MAX_ATTEMPTS = 6  # of one request, dropping rejected fields in between
_UNSUPPORTED_STATUSES = (404, 405, 501)


class OpenAIUpstream:
    """One model of a server with Chat Completions or Responses."""

    name = "openai"

    def __init__(
        self, endpoint: Endpoint, remote: RemoteModel, options: OpenAIOptions | None = None
    ) -> None:
        self._endpoint = endpoint
        self._model = remote.name
        self._names = frozenset(remote.names)
        self._is_dovetail = remote.version == DOVETAIL_OWNER
        self._options = options = options or OpenAIOptions()
        self._server_name = "the upstream"  # clients must not see its address
        self._redactor = Redactor(endpoint)
        self._timeouts = Timeouts(read=options.timeout)
        self._extra_fields = options.extra_fields()
        options.hosted_kinds()  # raises an error if the option is invalid
        self._syntax = ModelSyntax(options, remote.name) if options.raw else None
        self._adaptations = RequestAdaptations(options.images, call_id_format(remote))
        self._api: UpstreamApi | None = "chat" if options.raw else None
        if options.api != "auto":
            self._api = options.api
        self._reasoning_field = _configured_reasoning_field(options)
        self._probe_lock = asyncio.Lock()
        self._probe_count = 0
        self._has_custom_tools: bool | None = None
        self._not_carried: Counter[str] = Counter()
        self._context_length = remote.context_length

    @property
    def capabilities(self) -> EngineCapabilities:
        """The capabilities of the server, as far as they are known by now."""
        return EngineCapabilities(
            sampling=frozenset(("logit_bias",)),
            logprobs=True,
            cached_tokens=True,
            context_length=self._context_length,
            images=self._adaptations.images,
            hosted_tools=self._options.hosted_kinds(),
            api=self._api,
        )

    async def start(self) -> None:
        """Detect the API and the reasoning field. Raise an error if no server responds."""
        self._context_length = await find_context_length(
            self._endpoint, self._model, await list_models(self._endpoint)
        )
        await self._ensure_probed()

    async def stream(self, request: Request) -> AsyncGenerator[list[Event]]:
        """Yield batches of events as they arrive. Closing the generator closes the connection."""
        with self._redactor.clean_errors():
            async with aclosing(self._stream(request)) as batches:
                async for batch in batches:
                    yield batch

    async def health(self) -> EngineHealth:
        """Return whether the server responds, and what was detected about it."""
        facts = {
            "api": self._api or "not known yet",
            "model": self._model,
            "raw": self._syntax is not None,
            "reasoning_field": self._reasoning_field_label(),
            "exact_turns": False,
            "not_carried": dict(self._not_carried),
            "fields_refused": self._adaptations.dropped,
        }
        try:
            client_request = ClientRequest("GET", "/v1/models", timeouts=DISCOVERY_TIMEOUTS)
            status, content = await fetch(self._endpoint, client_request)
        except DovetailError as error:
            return EngineHealth(False, self._redactor.clean(error.message), facts)
        if status == 200:
            missing = self._is_model_missing(content)
            detail = f"the server does not serve {self._model!r} any more" if missing else ""
            return EngineHealth(not missing, detail, facts)
        if status in _UNSUPPORTED_STATUSES:
            return EngineHealth(True, "", facts)
        rejection = parse_rejection(status, content)
        rejected = error_from_rejection(self._server_name, self._model, rejection)
        return EngineHealth(False, self._redactor.clean(rejected.message), facts)

    async def stop(self) -> None:
        """Do nothing: each response has its own connection."""

    async def _stream(self, request: Request) -> AsyncGenerator[list[Event]]:
        api, dialect = await self._ensure_probed()
        if self._syntax is None and any(tool.custom for tool in request.tools):
            dialect = await self._detect_custom_tools(dialect)
        unlimited = self._is_limit_beyond_context(request)
        learned: set[str] = set()
        for _ in range(MAX_ATTEMPTS):
            encoded = self._encode_request(request, api, dialect)
            requested = drop_limit(encoded.fields) if unlimited else encoded.fields
            fields = {**self._adaptations.apply(requested), **self._extra_fields}
            client_request = ClientRequest(
                "POST",
                API_PATHS[api],
                msgspec.json.encode(fields),
                _session_headers(request),
                self._timeouts,
            )
            async with send_request(self._endpoint, client_request) as response:
                if response.status == 200:
                    omitted = dropped_fields(requested, fields)
                    ignored = (f"ignored:{path}" for path in (*encoded.ignored, *omitted))
                    notes = (*encoded.dropped, *ignored, *_upstream_notes(response))
                    self._not_carried.update(encoded.dropped)
                    restorer = self._create_restorer(request)
                    reader = UpstreamResponseReader(
                        self._server_name, READERS[api](), restorer, notes, unlimited, omitted
                    )
                    async with aclosing(self._events(response, reader)) as batches:
                        async for batch in batches:
                            yield batch
                    return
                # Before the message is truncated, which could leave a part of a secret.
                content = self._redactor.clean_bytes(await response.read())
                rejection = parse_rejection(response.status, content, response.headers)
            if not unlimited and is_limit_too_large(fields, rejection):
                unlimited = True
            elif more := self._adaptations.learn_from_rejection(api, fields, rejection):
                learned |= more
            else:
                self._adaptations.revert(learned)
                raise error_from_rejection(self._server_name, self._model, rejection)
        self._adaptations.revert(learned)
        raise EngineError(f"{self._server_name} rejected the request after {MAX_ATTEMPTS} attempts")

    async def _events(
        self, response: ClientResponse, reader: UpstreamResponseReader
    ) -> AsyncGenerator[list[Event]]:
        if "json" in response.headers.get("content-type", ""):
            yield reader.read_body(await response.read())
            return
        async with aclosing(response.iter_chunks()) as chunks:
            async for chunk in chunks:
                if events := reader.feed(chunk):
                    yield events
                if reader.is_finished:
                    return
        yield reader.finish()

    def _is_model_missing(self, listing: bytes) -> bool:
        """Return whether a server that listed the model lists only other models now.

        Some servers accept names that they do not list, so a model that was never listed is not
        expected in the list.
        """
        if self._model not in self._names:
            return False
        return self._model not in {str(card["id"]) for card in parse_model_list(listing)}

    def _create_restorer(self, request: Request) -> RawTextReader | ToolNameRestorer:
        if self._syntax is not None:
            return RawTextReader(self._syntax, request)
        return ToolNameRestorer(ToolNames(request.tools))

    def _encode_request(
        self, request: Request, api: UpstreamApi, dialect: UpstreamDialect
    ) -> UpstreamRequest:
        dialect = msgspec.structs.replace(dialect, images=self._adaptations.images)
        request = rewrite_call_ids(request, self._adaptations.call_id_format)
        if api == "responses":
            return build_responses_request(request, self._model_name(request), dialect)
        if self._syntax is None:
            return build_chat_request(request, self._model_name(request), dialect)
        writer = AssistantTurnWriter(self._syntax, ToolNames(request.tools))
        encoded = build_chat_request(request, self._model_name(request), dialect, writer)
        dropped = (*encoded.dropped, *writer.not_carried)
        return msgspec.structs.replace(encoded, dropped=dropped)

    def _is_limit_beyond_context(self, request: Request) -> bool:
        """Return whether the limit exceeds the context window, which some servers reject."""
        limit, length = request.sampling.max_tokens, self._context_length
        return limit is not None and length is not None and limit >= length

    async def _ensure_probed(self) -> tuple[UpstreamApi, UpstreamDialect]:
        """Return the API and the dialect. They are probed once, and again if the probe failed."""
        async with self._probe_lock:
            if self._api is None:
                self._api = await self._detect_api()
            if self._reasoning_field is None or (
                self._reasoning_field.retryable and self._probe_count < MAX_PROBES
            ):
                self._reasoning_field = await self._probe_reasoning_field(self._api)
        field = self._reasoning_field.field
        custom = self._options.custom_tools
        if custom is None:
            # Only Dovetail servers read `reasoning_segments`.
            custom = self._is_dovetail or field == "reasoning_segments"
        return self._api, UpstreamDialect(field, custom, seals=self._api == "responses")

    async def _detect_custom_tools(self, dialect: UpstreamDialect) -> UpstreamDialect:
        """Return the dialect with native free-text tools if the server has them.

        This is probed once, when the first client sends such a tool.
        """
        if dialect.custom_tools or self._options.custom_tools is not None:
            return dialect
        async with self._probe_lock:
            if self._has_custom_tools is None:
                self._has_custom_tools = await probe_custom_tools(
                    self._count_prompt_tokens, self._model, self._api or "chat"
                )
        return msgspec.structs.replace(dialect, custom_tools=self._has_custom_tools)

    def _model_name(self, request: Request) -> str:
        """Return the model name to request: the client's if the server has it, else the default."""
        return request.model if request.model in self._names else self._model

    async def _detect_api(self) -> UpstreamApi:
        """Prefer Chat Completions if the server offers it: servers parse best for that API."""
        for api, path in API_PATHS.items():
            client_request = ClientRequest("POST", path, b"{}", timeouts=DISCOVERY_TIMEOUTS)
            status, _ = await fetch(self._endpoint, client_request)
            if status not in _UNSUPPORTED_STATUSES:
                return api
        raise EngineError(f"{self._server_name} supports neither Chat Completions nor Responses")

    async def _probe_reasoning_field(self, api: UpstreamApi) -> ReasoningFieldResult:
        if api == "responses" or self._syntax is not None:
            return ReasoningFieldResult("reasoning_content")  # not used with items or raw text
        self._probe_count += 1
        try:
            result = await probe_reasoning_field(self._count_prompt_tokens, self._model)
        except DovetailError as error:
            result = unknown_result(self._redactor.clean(error.message))
        log_probe_result(str(self._endpoint), result)
        return result

    async def _count_prompt_tokens(self, body: dict[str, Any]) -> int | UpstreamRejection | None:
        """Return the number of tokens of a prompt, see `CountPromptTokens`."""
        fields = {**body, **self._extra_fields, "stream": False}
        path = API_PATHS[self._api or "chat"]
        client_request = ClientRequest(
            "POST", path, msgspec.json.encode(fields), timeouts=self._timeouts
        )
        async with send_request(self._endpoint, client_request) as response:
            content = await response.read()
            if response.status != 200:
                return parse_rejection(response.status, content)
        try:
            usage = msgspec.json.decode(content, type=_CountResponse).usage
            return usage.input_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        except FRAME_ERRORS:
            return None

    def _reasoning_field_label(self) -> str:
        if self._reasoning_field is None:
            return "not known yet"
        if not self._reasoning_field.known:
            return f"{self._reasoning_field.field}, assumed: {self._reasoning_field.reason}"
        if self._syntax is not None:
            return "written into the text"
        return "items" if self._api == "responses" else self._reasoning_field.field or "none"


class _PromptUsage(msgspec.Struct, frozen=True):
    """The count of Chat Completions, or of Responses."""

    prompt_tokens: int | None = None
    input_tokens: int | None = None


class _CountResponse(msgspec.Struct, frozen=True):
    usage: _PromptUsage


def _configured_reasoning_field(options: OpenAIOptions) -> ReasoningFieldResult | None:
    """Return the field that the operator configured."""
    match options.reasoning_field:
        case "auto":
            return None
        case "none":
            return ReasoningFieldResult(None)
        case field:
            return ReasoningFieldResult(field)


def _upstream_notes(response: ClientResponse) -> list[str]:
    """Return what another Dovetail reports about the request."""
    return [note for note in response.headers.get("x-dovetail-diagnostics", "").split(", ") if note]


def _session_headers(request: Request) -> dict[str, str]:
    """Return the session as a header for servers that route by it. Others ignore it."""
    session = (request.identity.session or "").strip()
    if not session.isascii() or not session.isprintable():
        return {}
    return {"x-session-id": session} if 0 < len(session) <= MAX_SESSION_ID_CHARS else {}
