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

from dovetail.engines.discovery import RemoteModel
from dovetail.engines.engine import Abilities, Health
from dovetail.engines.openai.adaptations import Concessions, limit_is_too_large, without_limit
from dovetail.engines.openai.discovery import PATIENCE, list_models, window
from dovetail.engines.openai.errors import Refusal, error_of, read_refusal
from dovetail.engines.openai.options import OpenAIOptions
from dovetail.engines.openai.probe import Verdict, log_verdict, probe_reasoning, unknown
from dovetail.engines.openai.raw_text import Notation, RawReader, TurnText
from dovetail.engines.openai.response_reader import AnswerReader
from dovetail.engines.openai.restore import Restorer
from dovetail.engines.openai.tool_calls import DOVETAIL, form_of, with_ids
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, ClientResponse, fetch, send_request
from dovetail_model import DovetailError, EngineError, Event, Request
from dovetail_protocols import (
    Asked,
    ChatReader,
    Dialect,
    ResponsesReader,
    ToolNames,
    chat_request,
    responses_request,
)

Api = Literal["chat", "responses"]
PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
PROBES = 3
LONGEST_SESSION = 512  # characters: a longer name is refused by servers, head and all
TRIES = 6  # a server that refuses as many fields one by one is asked no more
_NOT_OFFERED = (404, 405, 501)


class OpenAIUpstream:
    """One model of a server that speaks Chat Completions or Responses."""

    name = "openai"

    def __init__(
        self, endpoint: Endpoint, remote: RemoteModel, options: OpenAIOptions | None = None
    ) -> None:
        self._endpoint = endpoint
        self._model = remote.name
        self._names = frozenset(remote.names)
        self._ours = remote.version == DOVETAIL
        self._options = options = options or OpenAIOptions()
        self._who = f"the upstream at {endpoint}"
        self._patience = Timeouts(read=options.timeout)
        self._more = options.more_fields()
        self._notation = Notation(options, remote.name) if options.raw else None
        self._concessions = Concessions(options.images, form_of(remote))
        self._api: Api | None = "chat" if options.raw else None
        if options.api != "auto":
            self._api = options.api
        self._verdict = _told(options)
        self._probing = asyncio.Lock()
        self._probes = 0
        self._lost: Counter[str] = Counter()
        self.abilities = Abilities(
            logprobs=True, cached_tokens=True, context_length=remote.context_length
        )

    async def start(self) -> None:
        """Finds out what it speaks and where it reads thoughts. Raises if nobody is there."""
        length = await window(self._endpoint, self._model, await list_models(self._endpoint))
        self.abilities = replace(self.abilities, context_length=length)
        await self._know()

    async def answer(self, request: Request) -> AsyncGenerator[list[Event]]:
        """Batches of events as they come. Closing it drops the connection."""
        api, dialect = await self._know()
        unlimited = self._outgrows(request)
        learned: set[str] = set()
        for _ in range(TRIES):
            asked = self._asked(request, api, dialect)
            fields = without_limit(asked.fields) if unlimited else asked.fields
            fields = {**self._concessions.apply(fields), **self._more}
            call = ClientRequest(
                "POST", PATHS[api], msgspec.json.encode(fields), _session(request), self._patience
            )
            async with send_request(self._endpoint, call) as reply:
                if reply.status == 200:
                    self._lost.update(asked.lost)
                    reader = self._reader(request, api, asked.lost, unlimited)
                    async with aclosing(self._events(reply, reader)) as batches:
                        async for batch in batches:
                            yield batch
                    return
                refusal = read_refusal(reply.status, await reply.read(), reply.headers)
            if not unlimited and limit_is_too_large(fields, refusal):
                unlimited = True
            elif more := self._concessions.learn(fields, refusal):
                learned |= more
            else:
                self._concessions.forget(learned)
                raise error_of(self._who, self._model, refusal)
        self._concessions.forget(learned)
        raise EngineError(f"{self._who} refuses the request in every form")

    async def health(self) -> Health:
        """Whether it answers, and what was found out about it."""
        facts = {
            "api": self._api or "not known yet",
            "model": self._model,
            "raw": self._notation is not None,
            "reasoning_field": self._reasoning_fact(),
            "exact_turns": False,
            "not_carried": dict(self._lost),
            "fields_refused": self._concessions.dropped,
        }
        try:
            call = ClientRequest("GET", "/v1/models", timeouts=PATIENCE)
            status, content = await fetch(self._endpoint, call)
        except DovetailError as error:
            return Health(False, error.message, facts)
        if status == 200 or status in _NOT_OFFERED:
            return Health(True, "", facts)
        refusal = read_refusal(status, content)
        return Health(False, error_of(self._who, self._model, refusal).message, facts)

    async def stop(self) -> None:
        """There is nothing to let go of: each answer has its own connection."""

    async def _events(self, reply: ClientResponse, reader: AnswerReader) -> AsyncGenerator[list[Event]]:
        if "json" in reply.headers.get("content-type", ""):
            yield reader.whole(await reply.read())
            return
        async with aclosing(reply.iter_chunks()) as chunks:
            async for chunk in chunks:
                if events := reader.feed(chunk):
                    yield events
                if reader.over:
                    return
        yield reader.finish()

    def _reader(
        self, request: Request, api: Api, lost: Sequence[str], unlimited: bool
    ) -> AnswerReader:
        reader = ResponsesReader() if api == "responses" else ChatReader()
        names = ToolNames(request.tools)
        restorer = RawReader(self._notation, request) if self._notation else Restorer(names)
        return AnswerReader(self._who, reader, restorer, lost, unlimited)

    def _asked(self, request: Request, api: Api, dialect: Dialect) -> Asked:
        dialect = msgspec.structs.replace(dialect, images=self._concessions.images)
        request = with_ids(request, self._concessions.ids)
        if api == "responses":
            return responses_request(request, self._named(request), dialect)
        if self._notation is None:
            return chat_request(request, self._named(request), dialect)
        text = TurnText(self._notation, ToolNames(request.tools))
        asked = chat_request(request, self._named(request), dialect, text)
        return Asked(asked.fields, (*asked.lost, *text.lost))

    def _outgrows(self, request: Request) -> bool:
        """Whether the limit is no limit: some servers refuse one that the window cannot hold."""
        limit, length = request.sampling.max_tokens, self.abilities.context_length
        return limit is not None and length is not None and limit >= length

    async def _know(self) -> tuple[Api, Dialect]:
        """The API and what the server takes; found out once, and again where that failed."""
        async with self._probing:
            if self._api is None:
                self._api = await self._offered()
            if self._verdict is None or (self._verdict.again and self._probes < PROBES):
                self._verdict = await self._probed(self._api)
        field = self._verdict.field
        custom = self._options.custom_tools
        if custom is None:
            custom = self._ours or field == "reasoning_segments"  # which only our servers read
        return self._api, Dialect(field, custom, seals=self._api == "responses")

    def _named(self, request: Request) -> str:
        """The model to ask for: the one that the client names, if the server has it."""
        return request.model if request.model in self._names else self._model

    async def _offered(self) -> Api:
        """Chat Completions where it is offered: every server parses best for that API."""
        for api, path in PATHS.items():
            call = ClientRequest("POST", path, b"{}", timeouts=PATIENCE)
            status, _ = await fetch(self._endpoint, call)
            if status not in _NOT_OFFERED:
                return api
        raise EngineError(f"{self._who} offers neither Chat Completions nor Responses")

    async def _probed(self, api: Api) -> Verdict:
        if api == "responses" or self._notation is not None:
            return Verdict("reasoning_content")  # items, or text: no field has to be found
        self._probes += 1
        try:
            verdict = await probe_reasoning(self._count, self._model)
        except DovetailError as error:
            verdict = unknown(error.message)
        log_verdict(str(self._endpoint), verdict)
        return verdict

    async def _count(self, body: dict[str, Any]) -> int | Refusal | None:
        """The tokens of a prompt, see `probe.Ask`."""
        fields = {**body, **self._more, "stream": False}
        call = ClientRequest("POST", PATHS["chat"], msgspec.json.encode(fields), timeouts=self._patience)
        async with send_request(self._endpoint, call) as reply:
            content = await reply.read()
            if reply.status != 200:
                return read_refusal(reply.status, content)
        try:
            return msgspec.json.decode(content, type=_Counted).usage.prompt_tokens
        except msgspec.DecodeError:
            return None

    def _reasoning_fact(self) -> str:
        if self._verdict is None:
            return "not known yet"
        if not self._verdict.known:
            return f"{self._verdict.field}, unproved: {self._verdict.why}"
        if self._notation is not None:
            return "written into the text"
        return "items" if self._api == "responses" else self._verdict.field or "none"


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int


class _Counted(msgspec.Struct, frozen=True):
    usage: _Usage


def _told(options: OpenAIOptions) -> Verdict | None:
    """The field that the operator names."""
    match options.reasoning_field:
        case "auto":
            return None
        case "none":
            return Verdict(None)
        case field:
            return Verdict(field)


def _session(request: Request) -> dict[str, str]:
    """The session as a header: servers that route by it know it, all others ignore it."""
    session = (request.identity.session or "").strip()
    if not session.isascii() or not session.isprintable():
        return {}
    return {"x-session-id": session} if 0 < len(session) <= LONGEST_SESSION else {}
