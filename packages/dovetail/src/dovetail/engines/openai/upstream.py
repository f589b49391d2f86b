"""An upstream that renders and parses by itself. Its events are mapped, never parsed again.

Turns are not exact there: what it rendered and which tokens it drew is its own business. What its
API can carry of the model's order is carried, and what it cannot is counted.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

import msgspec

from dovetail.engines.engine import EngineCapabilities, EngineHealth, RemoteModel
from dovetail.engines.openai.adaptations import RequestAdaptations, drop_limit, is_limit_too_large
from dovetail.engines.openai.discovery import (
    DISCOVERY_TIMEOUTS,
    ReasoningFieldResult,
    find_context_length,
    list_models,
    log_probe_result,
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
    UpstreamDialect,
    UpstreamRequest,
    build_chat_request,
    build_responses_request,
)

UpstreamApi = Literal["chat", "responses"]
API_PATHS: dict[UpstreamApi, str] = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
MAX_PROBES = 3
MAX_SESSION_ID_CHARS = 512  # characters: a longer name is refused by servers, head and all
MAX_ATTEMPTS = 6  # a server that refuses as many fields one by one is asked no more
_UNSUPPORTED_STATUSES = (404, 405, 501)


class OpenAIUpstream:
    """One model of a server that speaks Chat Completions or Responses."""

    name = "openai"

    def __init__(
        self, endpoint: Endpoint, remote: RemoteModel, options: OpenAIOptions | None = None
    ) -> None:
        self._endpoint = endpoint
        self._model = remote.name
        self._names = frozenset(remote.names)
        self._is_dovetail = remote.version == DOVETAIL_OWNER
        self._options = options = options or OpenAIOptions()
        self._server_name = f"the upstream at {endpoint}"
        self._timeouts = Timeouts(read=options.timeout)
        self._extra_fields = options.extra_fields()
        self._syntax = ModelSyntax(options, remote.name) if options.raw else None
        self._adaptations = RequestAdaptations(options.images, call_id_format(remote))
        self._api: UpstreamApi | None = "chat" if options.raw else None
        if options.api != "auto":
            self._api = options.api
        self._reasoning_field = _configured_reasoning_field(options)
        self._probe_lock = asyncio.Lock()
        self._probe_count = 0
        self._not_carried: Counter[str] = Counter()
        self.capabilities = EngineCapabilities(
            logprobs=True, cached_tokens=True, context_length=remote.context_length
        )

    async def start(self) -> None:
        """Finds out what it speaks and where it reads thoughts. Raises if nobody is there."""
        length = await find_context_length(
            self._endpoint, self._model, await list_models(self._endpoint)
        )
        self.capabilities = replace(self.capabilities, context_length=length)
        await self._ensure_probed()

    async def stream(self, request: Request) -> AsyncGenerator[list[Event]]:
        """Batches of events as they come. Closing it drops the connection."""
        api, dialect = await self._ensure_probed()
        unlimited = self._is_limit_beyond_context(request)
        learned: set[str] = set()
        for _ in range(MAX_ATTEMPTS):
            asked = self._encode_request(request, api, dialect)
            fields = drop_limit(asked.fields) if unlimited else asked.fields
            fields = {**self._adaptations.apply(fields), **self._extra_fields}
            call = ClientRequest(
                "POST",
                API_PATHS[api],
                msgspec.json.encode(fields),
                _session_headers(request),
                self._timeouts,
            )
            async with send_request(self._endpoint, call) as reply:
                if reply.status == 200:
                    self._not_carried.update(asked.dropped)
                    reader = self._create_reader(request, api, asked.dropped, unlimited)
                    async with aclosing(self._events(reply, reader)) as batches:
                        async for batch in batches:
                            yield batch
                    return
                refusal = parse_rejection(reply.status, await reply.read(), reply.headers)
            if not unlimited and is_limit_too_large(fields, refusal):
                unlimited = True
            elif more := self._adaptations.learn_from_rejection(fields, refusal):
                learned |= more
            else:
                self._adaptations.revert(learned)
                raise error_from_rejection(self._server_name, self._model, refusal)
        self._adaptations.revert(learned)
        raise EngineError(f"{self._server_name} refuses the request in every form")

    async def health(self) -> EngineHealth:
        """Whether it answers, and what was found out about it."""
        facts = {
            "api": self._api or "not known yet",
            "model": self._model,
            "raw": self._syntax is not None,
            "reasoning_field": self._reasoning_field_label(),
            "exact_turns": False,
            "not_carried": dict(self._not_carried),
            "fields_refused": self._adaptations.dropped_fields,
        }
        try:
            call = ClientRequest("GET", "/v1/models", timeouts=DISCOVERY_TIMEOUTS)
            status, content = await fetch(self._endpoint, call)
        except DovetailError as error:
            return EngineHealth(False, error.message, facts)
        if status == 200 or status in _UNSUPPORTED_STATUSES:
            return EngineHealth(True, "", facts)
        refusal = parse_rejection(status, content)
        return EngineHealth(
            False, error_from_rejection(self._server_name, self._model, refusal).message, facts
        )

    async def stop(self) -> None:
        """There is nothing to let go of: each answer has its own connection."""

    async def _events(
        self, reply: ClientResponse, reader: UpstreamResponseReader
    ) -> AsyncGenerator[list[Event]]:
        if "json" in reply.headers.get("content-type", ""):
            yield reader.read_body(await reply.read())
            return
        async with aclosing(reply.iter_chunks()) as chunks:
            async for chunk in chunks:
                if events := reader.feed(chunk):
                    yield events
                if reader.is_finished:
                    return
        yield reader.finish()

    def _create_reader(
        self, request: Request, api: UpstreamApi, not_carried: Sequence[str], unlimited: bool
    ) -> UpstreamResponseReader:
        reader = ResponsesReader() if api == "responses" else ChatReader()
        names = ToolNames(request.tools)
        restorer = RawTextReader(self._syntax, request) if self._syntax else ToolNameRestorer(names)
        return UpstreamResponseReader(self._server_name, reader, restorer, not_carried, unlimited)

    def _encode_request(
        self, request: Request, api: UpstreamApi, dialect: UpstreamDialect
    ) -> UpstreamRequest:
        dialect = msgspec.structs.replace(dialect, images=self._adaptations.images)
        request = rewrite_call_ids(request, self._adaptations.call_id_format)
        if api == "responses":
            return build_responses_request(request, self._model_name(request), dialect)
        if self._syntax is None:
            return build_chat_request(request, self._model_name(request), dialect)
        text = AssistantTurnWriter(self._syntax, ToolNames(request.tools))
        asked = build_chat_request(request, self._model_name(request), dialect, text)
        return UpstreamRequest(asked.fields, (*asked.dropped, *text.not_carried))

    def _is_limit_beyond_context(self, request: Request) -> bool:
        """Whether the limit is no limit: some servers refuse one that the window cannot hold."""
        limit, length = request.sampling.max_tokens, self.capabilities.context_length
        return limit is not None and length is not None and limit >= length

    async def _ensure_probed(self) -> tuple[UpstreamApi, UpstreamDialect]:
        """The API and what the server takes; found out once, and again where that failed."""
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
            custom = (
                self._is_dovetail or field == "reasoning_segments"
            )  # which only our servers read
        return self._api, UpstreamDialect(field, custom, seals=self._api == "responses")

    def _model_name(self, request: Request) -> str:
        """The model to ask for: the one that the client names, if the server has it."""
        return request.model if request.model in self._names else self._model

    async def _detect_api(self) -> UpstreamApi:
        """Chat Completions where it is offered: every server parses best for that API."""
        for api, path in API_PATHS.items():
            call = ClientRequest("POST", path, b"{}", timeouts=DISCOVERY_TIMEOUTS)
            status, _ = await fetch(self._endpoint, call)
            if status not in _UNSUPPORTED_STATUSES:
                return api
        raise EngineError(f"{self._server_name} offers neither Chat Completions nor Responses")

    async def _probe_reasoning_field(self, api: UpstreamApi) -> ReasoningFieldResult:
        if api == "responses" or self._syntax is not None:
            return ReasoningFieldResult(
                "reasoning_content"
            )  # items, or text: no field has to be found
        self._probe_count += 1
        try:
            verdict = await probe_reasoning_field(self._count_prompt_tokens, self._model)
        except DovetailError as error:
            verdict = unknown_result(error.message)
        log_probe_result(str(self._endpoint), verdict)
        return verdict

    async def _count_prompt_tokens(self, body: dict[str, Any]) -> int | UpstreamRejection | None:
        """The tokens of a prompt, see `probe.Ask`."""
        fields = {**body, **self._extra_fields, "stream": False}
        call = ClientRequest(
            "POST", API_PATHS["chat"], msgspec.json.encode(fields), timeouts=self._timeouts
        )
        async with send_request(self._endpoint, call) as reply:
            content = await reply.read()
            if reply.status != 200:
                return parse_rejection(reply.status, content)
        try:
            return msgspec.json.decode(content, type=_CountResponse).usage.prompt_tokens
        except msgspec.DecodeError:
            return None

    def _reasoning_field_label(self) -> str:
        if self._reasoning_field is None:
            return "not known yet"
        if not self._reasoning_field.known:
            return f"{self._reasoning_field.field}, unproved: {self._reasoning_field.reason}"
        if self._syntax is not None:
            return "written into the text"
        return "items" if self._api == "responses" else self._reasoning_field.field or "none"


class _PromptUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int


class _CountResponse(msgspec.Struct, frozen=True):
    usage: _PromptUsage


def _configured_reasoning_field(options: OpenAIOptions) -> ReasoningFieldResult | None:
    """The field that the operator names."""
    match options.reasoning_field:
        case "auto":
            return None
        case "none":
            return ReasoningFieldResult(None)
        case field:
            return ReasoningFieldResult(field)


def _session_headers(request: Request) -> dict[str, str]:
    """The session as a header: servers that route by it know it, all others ignore it."""
    session = (request.identity.session or "").strip()
    if not session.isascii() or not session.isprintable():
        return {}
    return {"x-session-id": session} if 0 < len(session) <= MAX_SESSION_ID_CHARS else {}
