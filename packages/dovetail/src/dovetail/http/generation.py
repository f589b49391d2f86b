"""The endpoints that generate: the same way for each API, told apart by its codec."""

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from dovetail.access.admission import AdmissionController
from dovetail.access.limits import RateLimitExceeded
from dovetail.http.body import read_body
from dovetail.http.capture import MOST as MOST_KEPT
from dovetail.http.drain import Draining
from dovetail.http.exchange import Exchange, end_of
from dovetail.http.ids import AnswerIds, call_ids, new_id, new_number
from dovetail.http.options import HttpOptions
from dovetail.http.rate_limits import Gate
from dovetail.http.response import SSE, Streaming
from dovetail.http.responses.background import Background
from dovetail.http.responses.conversation import Conversation, Keeping
from dovetail.http.responses.following import pieces, show
from dovetail.http.tracker import Account
from dovetail.http.whole import Whole
from dovetail.net.disconnect import DisconnectGuard
from dovetail.net.exchange import ClientDisconnected
from dovetail.pipeline.choice_runner import warm_prefix
from dovetail.pipeline.execution import run_request, require_token_model
from dovetail.pipeline.raw import to_raw_model
from dovetail.pipeline.registry import ModelEntry, TokenModel, ModelRegistry
from dovetail.telemetry.metrics import Metrics
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    Finish,
    RateLimited,
    Request,
    Usage,
)
from dovetail_protocols import (
    COMPLETIONS,
    RESPONSES,
    Codec,
    ResponsesCodec,
    ResponsesEncoder,
    StreamEncoder,
    overflow_stream,
    shortened_body,
)


@dataclass(frozen=True)
class Asked:
    """A request that was read, and how its answer is to be kept.

    `encoder` is its stream, where that was begun already.
    """

    request: Request
    keeping: Keeping | None = None
    encoder: ResponsesEncoder | None = None


class Generator:
    """Answers the requests that a model answers."""

    def __init__(
        self,
        service: ModelRegistry,
        options: HttpOptions,
        draining: Draining,
        metrics: Metrics,
        background: Background,
    ) -> None:
        self._service = service
        self._options = options
        self._draining = draining
        self._background = background
        self._gate = Gate(options.keys, options.book, metrics)
        self._admission = AdmissionController(
            options.max_concurrent,
            options.max_queued,
            options.queue_timeout,
            on_rejected=lambda: metrics.count_rate_limited("busy"),
        )
        self._raw = {one.name: to_raw_model(one) for one in service.entries if isinstance(one, TokenModel)}

    async def generate(self, exchange: Exchange, account: Account, codec: Codec) -> None:
        """One request, from its body to the end of its answer."""
        try:
            with ExitStack() as visit:
                visit.enter_context(self._gate.visit(exchange, account, codec))
                await self._generate(exchange, account, codec, visit)
        except RateLimitExceeded as refusal:
            if codec is not RESPONSES:
                raise
            request = await self._read_little(exchange, codec)
            if not request.stream:
                raise
            await self._overflow(exchange, account, request, refusal)

    async def _read_little(self, exchange: Exchange, codec: Codec) -> Request:
        """Only how the answer is wanted: to refuse what is too much must cost next to nothing."""
        options = self._options
        body = await read_body(exchange, options.max_body_bytes, options.body_timeout)
        return self._own(exchange, codec.decode(shortened_body(body), exchange.headers))

    async def _read(self, exchange: Exchange, account: Account, codec: Codec) -> "Asked":
        options, memory = self._options, self._service.memory
        body = await read_body(exchange, options.max_body_bytes, options.body_timeout)
        if options.keep_payloads:
            account.body = body[:MOST_KEPT]
        if not isinstance(codec, ResponsesCodec):
            return Asked(self._own(exchange, codec.decode(body, exchange.headers, memory)))
        conversation = Conversation(self._service.response_store, exchange, body)
        await conversation.join(options.max_body_bytes)
        request = self._own(exchange, codec.decode(conversation.body, exchange.headers, memory))
        return Asked(request, await conversation.keeping(request))

    async def _generate(
        self, exchange: Exchange, account: Account, codec: Codec, visit: ExitStack
    ) -> None:
        asked = await self._read(exchange, account, codec)
        if exchange.warms:
            await self._warm(exchange, account, asked)
        elif asked.keeping is not None and asked.keeping.background:
            await self._detach(exchange, account, (asked.request, asked.keeping), visit)
        else:
            await self._respond(exchange, account, codec, asked)

    async def _warm(self, exchange: Exchange, account: Account, asked: "Asked") -> None:
        """An answer of nothing. It is kept, so that the next request can go on from it.

        Meanwhile the engine may read what that request will begin with.
        """
        served = self._service.find(asked.request.model)
        account.asked(asked.request, served)
        async with self._draining.answering(RESPONSES):
            frames = new_encoder(RESPONSES, asked).encode([Usage(), Finish("stop")])
            if asked.keeping is not None:
                frames += await asked.keeping.late()
            if isinstance(served, TokenModel):
                warm_prefix(served, asked.request)
            await exchange.begin(200, SSE, account.headers())
            await exchange.send(end_of(frames))

    async def _detach(
        self,
        exchange: Exchange,
        account: Account,
        task: tuple[Request, Keeping],
        visit: ExitStack,
    ) -> None:
        """Answers whether the client stays or not. It is told at once where to look."""
        request, keeping = task
        self._service.find(request.model)
        async with self._draining.answering(RESPONSES):
            self._background.make_sure_of_room(exchange.tenant)
        account.unstreamed = not request.stream
        leaving = visit.pop_all()
        streamed = Asked(msgspec.structs.replace(request, stream=True), keeping)
        encoder = cast("ResponsesEncoder", new_encoder(RESPONSES, streamed))

        async def work(apart: Exchange) -> None:
            with leaving:
                begun = replace(streamed, encoder=encoder)
                await self._respond(apart, account, RESPONSES, begun)

        frames, queued = self._background.start(exchange, account, keeping, encoder, work)
        if request.stream:
            with suppress(ClientDisconnected):
                await show(exchange, pieces(frames))
            return
        await keeping.written()
        await exchange.answer(200, queued, headers=account.headers())

    async def _respond(
        self, exchange: Exchange, account: Account, codec: Codec, asked: "Asked"
    ) -> None:
        """Answers a request that was read."""
        request = asked.request
        served = self._service.find(request.model)
        account.asked(request, served)
        if codec is COMPLETIONS:
            served = self._raw[require_token_model(served).name]
        try:
            async with (
                self._draining.answering(codec),
                DisconnectGuard(exchange.receive) as lifeline,
                self._admission.admit(codec, request.hints),
            ):
                await self._answer(exchange, account, codec, (served, asked), lifeline)
        except (ContextOverflow, RateLimited) as error:
            told = exchange.status is not None or asked.encoder is not None
            if codec is not RESPONSES or not request.stream or told:
                raise
            await self._overflow(exchange, account, request, error)

    async def _answer(
        self,
        exchange: Exchange,
        account: Account,
        codec: Codec,
        task: "tuple[ModelEntry, Asked]",
        lifeline: DisconnectGuard,
    ) -> None:
        served, asked = task
        request, keeping = asked.request, asked.keeping
        account.admitted()
        watch = account.watch()
        new_call_id = call_ids(codec.call_id_prefix)
        if request.stream:
            encoder = asked.encoder or new_encoder(codec, asked)
            ending = None if keeping is None else keeping.late
            pause = self._options.keep_alive
            streaming = Streaming(exchange, account, codec, encoder, pause, ending)
            told = run_request(served, request, new_call_id, streaming, watch)
            await streaming.run(self._draining.breakable(told), lifeline)
            return
        whole = Whole(request, codec, account)
        await run_request(served, request, new_call_id, whole, watch)
        body = whole.body()
        lifeline.release()
        if keeping is not None:
            keeping.keep(body)
            await keeping.settled()
        await exchange.answer(200, body, headers=account.headers())

    def _own(self, exchange: Exchange, request: Request) -> Request:
        """The request with what the server knows of it: whose it is, which side channels it has."""
        tenant = exchange.tenant or request.identity.tenant
        identity = msgspec.structs.replace(request.identity, tenant=tenant, answer=new_number())
        request = msgspec.structs.replace(request, identity=identity)
        if self._options.dispatch:
            channels = request.hints.dispatch | self._options.dispatch
            hints = msgspec.structs.replace(request.hints, dispatch=channels)
            request = msgspec.structs.replace(request, hints=hints)
        return request

    async def _overflow(
        self, exchange: Exchange, account: Account, request: Request, error: DovetailError
    ) -> None:
        """Codex understands these only inside a stream: it compacts, or waits and comes back."""
        account.failed(error, RESPONSES.encode_error(error).status)
        await exchange.begin(200, SSE, account.headers())
        await exchange.send(end_of(overflow_stream(request, error, new_id, time.time)))


def new_encoder(codec: Codec, asked: Asked) -> StreamEncoder:
    """The stream of an answer, which is kept when it ends."""
    request = asked.request
    encoder = codec.stream(request, AnswerIds(request.identity.answer), time.time)
    if asked.keeping is not None and isinstance(encoder, ResponsesEncoder):
        encoder.on_end = asked.keeping.on_end
    return encoder
