"""The endpoints that generate: the same way for each API, told apart by its codec."""

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import msgspec

from dovetail.access.admission import AdmissionController
from dovetail.access.limits import RateLimitExceeded
from dovetail.http.body import read_body
from dovetail.http.drain import DrainController
from dovetail.http.errors import error_status
from dovetail.http.exchange import MAX_PAYLOAD_BYTES as MOST_KEPT
from dovetail.http.exchange import ApiExchange
from dovetail.http.ids import ResponseIds, call_id_factory, new_id, new_response_number
from dovetail.http.options import HttpOptions
from dovetail.http.rate_limits import RateLimitGate
from dovetail.http.response import BufferedResponse, StreamingResponse
from dovetail.http.responses.background import BackgroundResponses
from dovetail.http.responses.conversation import ConversationResolver, ResponseSaver
from dovetail.http.responses.run import read_chunks, send_stream
from dovetail.http.tracker import RequestTracker
from dovetail.net.exchange import EVENT_STREAM_CONTENT_TYPE, ClientDisconnected, DisconnectGuard
from dovetail.pipeline.choice_runner import warm_prefix
from dovetail.pipeline.execution import require_token_model, run_request
from dovetail.pipeline.raw import to_raw_model
from dovetail.pipeline.registry import ModelEntry, ModelRegistry, TokenModel
from dovetail.telemetry.metrics import Metrics
from dovetail_model import DovetailError, Finish, Request, Usage
from dovetail_protocols import (
    RESPONSES,
    Codec,
    ResponsesEncoder,
    StreamEncoder,
    StreamErrors,
)


@dataclass(frozen=True)
class DecodedRequest:
    """A request that was read, and how its answer is to be kept.

    `encoder` is its stream, where that was begun already.
    """

    request: Request
    saver: ResponseSaver | None = None
    encoder: ResponsesEncoder | None = None


class GenerationEndpoint:
    """Answers the requests that a model answers."""

    def __init__(
        self,
        service: ModelRegistry,
        options: HttpOptions,
        draining: DrainController,
        metrics: Metrics,
        background: BackgroundResponses,
    ) -> None:
        self._service = service
        self._options = options
        self._draining = draining
        self._background = background
        self._gate = RateLimitGate(options.keys, options.limit_store, metrics)
        self._admission = AdmissionController(
            options.max_concurrent,
            options.max_queued,
            options.queue_timeout,
            on_rejected=lambda: metrics.count_rate_limited("busy"),
        )
        self._raw_models = {
            one.name: to_raw_model(one) for one in service.entries if isinstance(one, TokenModel)
        }

    async def generate(self, exchange: ApiExchange, account: RequestTracker, codec: Codec) -> None:
        """One request, from its body to the end of its answer."""
        try:
            with ExitStack() as visit:
                visit.enter_context(self._gate.lease(exchange, account, codec))
                await self._generate(exchange, account, codec, visit)
        except RateLimitExceeded as error:
            errors = codec.stream_errors
            if errors is None or not errors.covers(error):
                raise
            request = await self._decode_without_input(exchange, errors)
            if not request.stream:
                raise
            account.on_error(error, error_status(error, codec))
            frames = errors.encode(request, error, new_id, time.time)
            await _send_whole_stream(exchange, account, frames)

    async def _decode_without_input(self, exchange: ApiExchange, errors: StreamErrors) -> Request:
        """Decode only the form of the response: rejecting a request must cost next to nothing."""
        options = self._options
        body = await read_body(exchange, options.max_body_bytes, options.body_timeout)
        return self._add_server_fields(exchange, errors.decode(body, exchange.headers))

    async def _decode(
        self, exchange: ApiExchange, account: RequestTracker, codec: Codec
    ) -> "DecodedRequest":
        options, memory = self._options, self._service.memory
        body = await read_body(exchange, options.max_body_bytes, options.body_timeout)
        if options.capture_payloads:
            account.request_body = body[:MOST_KEPT]
        if codec.stateful is None:
            return DecodedRequest(
                self._add_server_fields(exchange, codec.decode(body, exchange.headers, memory))
            )
        conversation = ConversationResolver(self._service.response_store, exchange, body)
        await conversation.resolve(options.max_body_bytes)
        request = self._add_server_fields(
            exchange, codec.decode(conversation.body, exchange.headers, memory)
        )
        return DecodedRequest(request, await conversation.create_saver(request))

    async def _generate(
        self, exchange: ApiExchange, account: RequestTracker, codec: Codec, visit: ExitStack
    ) -> None:
        asked = await self._decode(exchange, account, codec)
        if exchange.warm_only:
            await self._warm(exchange, account, asked)
        elif asked.saver is not None and asked.saver.background:
            await self._run_in_background(exchange, account, (asked.request, asked.saver), visit)
        else:
            await self._respond(exchange, account, codec, asked)

    async def _warm(
        self, exchange: ApiExchange, account: RequestTracker, asked: "DecodedRequest"
    ) -> None:
        """An answer of nothing. It is kept, so that the next request can go on from it.

        Meanwhile the engine may read what that request will begin with.
        """
        served = self._service.find(asked.request.model)
        account.on_decoded(asked.request, served)
        async with self._draining.track(RESPONSES):
            frames = new_encoder(RESPONSES, asked).encode([Usage(), Finish("stop")])
            if asked.saver is not None:
                frames += await asked.saver.release_held_frame()
            if isinstance(served, TokenModel):
                warm_prefix(served, asked.request)
            await _send_whole_stream(exchange, account, frames)

    async def _run_in_background(
        self,
        exchange: ApiExchange,
        account: RequestTracker,
        task: tuple[Request, ResponseSaver],
        visit: ExitStack,
    ) -> None:
        """Answers whether the client stays or not. It is told at once where to look."""
        request, keeping = task
        self._service.find(request.model)
        async with self._draining.track(RESPONSES):
            self._background.check_capacity(exchange.tenant)
        account.stream_not_requested = not request.stream
        leaving = visit.pop_all()
        streamed = DecodedRequest(msgspec.structs.replace(request, stream=True), keeping)
        ids = ResponseIds(request.identity.response_number)
        encoder = RESPONSES.stream(streamed.request, ids, time.time, keeping.on_end)

        async def work(apart: ApiExchange) -> None:
            with leaving:
                begun = replace(streamed, encoder=encoder)
                await self._respond(apart, account, RESPONSES, begun)

        frames, queued = self._background.start(exchange, account, keeping, encoder, work)
        if request.stream:
            with suppress(ClientDisconnected):
                await send_stream(exchange, read_chunks(frames))
            return
        await keeping.wait_persisted()
        await exchange.respond(200, queued, headers=account.debug_headers())

    async def _respond(
        self, exchange: ApiExchange, account: RequestTracker, codec: Codec, asked: "DecodedRequest"
    ) -> None:
        """Answers a request that was read."""
        request = asked.request
        served = self._service.find(request.model)
        account.on_decoded(request, served)
        if codec.raw_prompts:
            served = self._raw_models[require_token_model(served).name]
        try:
            async with (
                self._draining.track(codec),
                DisconnectGuard(exchange.receive) as lifeline,
                self._admission.admit(codec, request.hints),
            ):
                await self._run(exchange, account, codec, (served, asked), lifeline)
        except DovetailError as error:
            errors = codec.stream_errors
            started = exchange.status is not None or asked.encoder is not None
            if errors is None or not errors.covers(error) or not request.stream or started:
                raise
            account.on_error(error, error_status(error, codec))
            frames = errors.encode(request, error, new_id, time.time)
            await _send_whole_stream(exchange, account, frames)

    async def _run(
        self,
        exchange: ApiExchange,
        account: RequestTracker,
        codec: Codec,
        task: "tuple[ModelEntry, DecodedRequest]",
        lifeline: DisconnectGuard,
    ) -> None:
        served, asked = task
        request, keeping = asked.request, asked.saver
        account.on_admitted()
        watch = account.create_observer()
        new_call_id = call_id_factory(codec.call_id_prefix)
        if request.stream:
            encoder = asked.encoder or new_encoder(codec, asked)
            ending = None if keeping is None else keeping.release_held_frame
            pause = self._options.keep_alive
            streaming = StreamingResponse(exchange, account, codec, encoder, pause, ending)
            told = run_request(served, request, new_call_id, streaming, watch)
            await streaming.run(self._draining.run_abortable(told), lifeline)
            return
        whole = BufferedResponse(request, codec, account)
        await run_request(served, request, new_call_id, whole, watch)
        body = whole.encode_body()
        lifeline.release()
        if keeping is not None:
            keeping.save(body)
            await keeping.wait_visible()
        await exchange.respond(200, body, headers=account.debug_headers())

    def _add_server_fields(self, exchange: ApiExchange, request: Request) -> Request:
        """The request with what the server knows of it: whose it is, which side channels it has."""
        tenant = exchange.tenant or request.identity.tenant
        identity = msgspec.structs.replace(
            request.identity, tenant=tenant, response_number=new_response_number()
        )
        request = msgspec.structs.replace(request, identity=identity)
        if self._options.dispatch:
            channels = request.hints.dispatch | self._options.dispatch
            hints = msgspec.structs.replace(request.hints, dispatch=channels)
            request = msgspec.structs.replace(request, hints=hints)
        return request


async def _send_whole_stream(exchange: ApiExchange, account: RequestTracker, frames: bytes) -> None:
    """Send a stream that is complete already."""
    headers = account.debug_headers()
    await exchange.start_response(200, EVENT_STREAM_CONTENT_TYPE, headers)
    await exchange.end(frames)


def new_encoder(codec: Codec, asked: DecodedRequest) -> StreamEncoder:
    """The stream of an answer, which is kept when it ends."""
    request = asked.request
    ids = ResponseIds(request.identity.response_number)
    if asked.saver is None or codec.stateful is None:
        return codec.stream(request, ids, time.time)
    return codec.stateful.stream(request, ids, time.time, asked.saver.on_end)
