"""The generation endpoints: one implementation for all APIs, parameterized by the codec."""

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import msgspec

from dovetail.access.admission import AdmissionController
from dovetail.access.budgets import BudgetGate
from dovetail.access.limits import RateLimitExceeded
from dovetail.access.rate_limits import RateLimitGate
from dovetail.http.drain import DrainController
from dovetail.http.errors import error_status
from dovetail.http.exchange import MAX_PAYLOAD_BYTES, ApiExchange
from dovetail.http.ids import ResponseIds, call_id_factory, new_id
from dovetail.http.options import HttpOptions
from dovetail.http.request_decoder import RequestDecoder
from dovetail.http.response import BufferedResponse, StreamingResponse
from dovetail.http.responses.background import BackgroundResponses
from dovetail.http.responses.conversation import ResponseSaver
from dovetail.http.responses.run import read_chunks, send_stream
from dovetail.http.tracker import RequestTracker
from dovetail.net.exchange import EVENT_STREAM_CONTENT_TYPE, ClientDisconnected, DisconnectGuard
from dovetail.net.open_files import max_engine_connections
from dovetail.pipeline.execution import require_token_model, run_request
from dovetail.pipeline.raw import to_raw_model
from dovetail.pipeline.registry import ModelEntry, ModelRegistry, TokenModel
from dovetail.pipeline.warming import warm_prefix
from dovetail.telemetry.metrics import Metrics
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    Finish,
    InvalidRequest,
    Request,
    RequestTooLarge,
    Usage,
)
from dovetail_protocols import (
    RESPONSES,
    Codec,
    ResponsesEncoder,
    StreamEncoder,
    with_effective_sampling,
)

_MIN_CHARGED_BYTES = 1 << 20  # of a rejected body
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class DecodedRequest:
    """A decoded request.

    saver: Stores the response; None if it is not stored.
    encoder: Encoder of the stream, if the stream has already started.
    """

    request: Request
    saver: ResponseSaver | None = None
    encoder: ResponsesEncoder | None = None


class GenerationEndpoint:
    """Handle generation requests of all APIs."""

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
        self._decoder = RequestDecoder(service, options)
        self._draining = draining
        self._background = background
        self._gate = RateLimitGate(options.keys, options.limit_store, metrics)
        self.budgets = BudgetGate(None, metrics)
        self._admission = AdmissionController(
            options.max_concurrent,
            options.max_queued,
            options.queue_timeout,
            on_rejected=lambda: metrics.count_rate_limited("busy"),
            capacity=max_engine_connections,
        )
        # The same models without a chat template, for the text completions API.
        self._raw_models = {
            entry.name: to_raw_model(entry)
            for entry in service.entries
            if isinstance(entry, TokenModel)
        }

    async def generate(self, exchange: ApiExchange, tracker: RequestTracker, codec: Codec) -> None:
        """Handle a request, from reading its body to the end of its response.

        Errors that clients of the API handle only inside a stream are sent as one.
        """
        rejected = Usage()
        try:
            with ExitStack() as lease:
                caller, headers = exchange.caller, exchange.extra_headers
                caller = lease.enter_context(
                    self._gate.lease(caller, codec, headers, lambda: tracker.usage or rejected)
                )
                for warning in await self.budgets.check(caller, headers):
                    if exchange.transport == "websocket":  # which has no headers
                        tracker.diagnostics.add(f"budget:{warning.name}")
                try:
                    await self._generate(exchange, tracker, codec, lease)
                except (InvalidRequest, RequestTooLarge, ContextOverflow):
                    rejected = _rejection_cost(exchange)
                    raise
        except RateLimitExceeded as error:
            errors = codec.stream_errors
            if errors is None or not errors.covers(error):
                raise
            request = await self._decoder.decode_without_input(exchange, errors)
            if not request.stream:
                raise
            tracker.on_error(error, error_status(error, codec))
            frames = errors.encode(request, error, new_id, time.time)
            await _send_whole_stream(exchange, tracker, frames)

    async def _decode(
        self, exchange: ApiExchange, tracker: RequestTracker, codec: Codec
    ) -> "DecodedRequest":
        body = await self._decoder.read_body(exchange)
        if self._options.capture_payloads:
            tracker.request_body = body[:MAX_PAYLOAD_BYTES]
        request, conversation = await self._decoder.decode(exchange, codec, body)
        if conversation is None:
            return DecodedRequest(request)
        return DecodedRequest(request, await conversation.create_saver(request))

    async def _generate(
        self, exchange: ApiExchange, tracker: RequestTracker, codec: Codec, lease: ExitStack
    ) -> None:
        decoded = self._apply_fallback(await self._decode(exchange, tracker, codec), tracker)
        decoded = replace(decoded, request=self._service.resolve_tools(decoded.request))
        decoded = self._resolve_sampling(codec, decoded)
        if exchange.warm_only:
            await self._warm(exchange, tracker, decoded)
        elif decoded.saver is not None and decoded.saver.background:
            await self._run_in_background(
                exchange, tracker, (decoded.request, decoded.saver), lease
            )
        else:
            await self._respond(exchange, tracker, codec, decoded)

    def _apply_fallback(
        self, decoded: "DecodedRequest", tracker: RequestTracker
    ) -> "DecodedRequest":
        """Send the request to a fallback of its model if no replica is available, and report it."""
        request = decoded.request
        entry = self._service.find_available(request.model)
        if entry is self._service.find(request.model):
            return decoded
        tracker.diagnostics.add("model_fallback")
        return replace(decoded, request=msgspec.structs.replace(request, model=entry.name))

    def _resolve_sampling(self, codec: Codec, decoded: "DecodedRequest") -> "DecodedRequest":
        """Add the sampling parameters in effect, which response objects of some APIs repeat."""
        if codec.stateful is None:
            return decoded
        request = decoded.request
        sampling = self._service.find(request.model).resolve_sampling(request.sampling)
        return replace(decoded, request=with_effective_sampling(request, sampling))

    async def _warm(
        self, exchange: ApiExchange, tracker: RequestTracker, decoded: "DecodedRequest"
    ) -> None:
        """Store and send a response without output, which the next request can continue.

        Meanwhile the engine prefills the beginning of the next prompt.
        """
        entry = self._service.find(decoded.request.model)
        tracker.on_decoded(decoded.request, entry)
        async with self._draining.track(RESPONSES):
            frames = new_encoder(RESPONSES, decoded).encode([Usage(), Finish("stop")])
            if decoded.saver is not None:
                frames += await decoded.saver.release_held_frame()
            if isinstance(entry, TokenModel):
                warm_prefix(entry, decoded.request)
            await _send_whole_stream(exchange, tracker, frames)

    async def _run_in_background(
        self,
        exchange: ApiExchange,
        tracker: RequestTracker,
        task: tuple[Request, ResponseSaver],
        lease: ExitStack,
    ) -> None:
        """Start a response that a disconnect does not cancel, and send its id or its stream."""
        request, saver = task
        self._service.find(request.model).check(request)
        async with self._draining.track(RESPONSES):
            self._background.check_capacity(exchange.tenant)
        tracker.stream_not_requested = not request.stream
        background_lease = lease.pop_all()
        scheduled = request if request.stream else _without_latency(request)
        stream_request = DecodedRequest(msgspec.structs.replace(scheduled, stream=True), saver)
        ids = ResponseIds(request.identity.response_number)
        encoder = RESPONSES.stream(stream_request.request, ids, time.time, saver.on_end)

        async def work(detached: ApiExchange) -> None:
            with background_lease:
                started = replace(stream_request, encoder=encoder)
                await self._respond(detached, tracker, RESPONSES, started)

        frames, queued = self._background.start(exchange, tracker, saver, encoder, work)
        if request.stream:
            with suppress(ClientDisconnected):
                await send_stream(exchange, read_chunks(frames))
            return
        await saver.wait_persisted()
        await exchange.respond(200, queued, headers=tracker.debug_headers())

    async def _respond(
        self,
        exchange: ApiExchange,
        tracker: RequestTracker,
        codec: Codec,
        decoded: "DecodedRequest",
    ) -> None:
        """Respond to a decoded request."""
        request = decoded.request
        entry = self._service.find(request.model)
        tracker.on_decoded(request, entry)
        entry.check(request)
        if codec.raw_prompts:
            entry = self._raw_models[require_token_model(entry).name]
        try:
            async with (
                self._draining.track(codec),
                DisconnectGuard(exchange.receive) as guard,
                self._admission.admit(codec, request.hints),
            ):
                await self._run(exchange, tracker, codec, (entry, decoded), guard)
        except DovetailError as error:
            errors = codec.stream_errors
            started = exchange.status is not None or decoded.encoder is not None
            if errors is None or not errors.covers(error) or not request.stream or started:
                raise
            tracker.on_error(error, error_status(error, codec))
            frames = errors.encode(request, error, new_id, time.time)
            await _send_whole_stream(exchange, tracker, frames)
        finally:
            if request.identity.final:
                self._service.release_in_peers(request.identity)

    async def _run(
        self,
        exchange: ApiExchange,
        tracker: RequestTracker,
        codec: Codec,
        task: "tuple[ModelEntry, DecodedRequest]",
        guard: DisconnectGuard,
    ) -> None:
        entry, decoded = task
        request, saver = decoded.request, decoded.saver
        tracker.on_admitted()
        observer = tracker.create_observer()
        new_call_id = call_id_factory(codec.call_id_prefix)
        if request.stream:
            encoder = decoded.encoder or new_encoder(codec, decoded)
            final_frames = None if saver is None else saver.release_held_frame
            keep_alive = self._options.keep_alive
            stream = StreamingResponse(exchange, tracker, codec, encoder, keep_alive, final_frames)
            generation = run_request(
                entry, request, new_call_id, stream, observer, self._service.server_tools
            )
            await stream.run(self._draining.run_abortable(generation), guard)
            return
        response = BufferedResponse(request, codec, tracker)
        await run_request(
            entry, request, new_call_id, response, observer, self._service.server_tools
        )
        body = response.encode_body()
        guard.release()
        if saver is not None:
            saver.save(body)
            await saver.wait_visible()
        await exchange.respond(200, body, headers=tracker.debug_headers())


def _without_latency(request: Request) -> Request:
    """Return a request for whose response no client waits, unless its hints specify a latency."""
    if request.hints.latency_sensitivity is not None:
        return request
    hints = msgspec.structs.replace(request.hints, latency_sensitivity=0.0)
    return msgspec.structs.replace(request, hints=hints)


def _rejection_cost(exchange: ApiExchange) -> Usage:
    """Return the tokens to charge for a rejected request: large bodies cost time, too."""
    size = exchange.held_bytes
    return Usage(input_tokens=size // _BYTES_PER_TOKEN if size >= _MIN_CHARGED_BYTES else 0)


async def _send_whole_stream(exchange: ApiExchange, tracker: RequestTracker, frames: bytes) -> None:
    """Send a complete stream at once."""
    headers = tracker.debug_headers()
    await exchange.start_response(200, EVENT_STREAM_CONTENT_TYPE, headers)
    await exchange.end(frames)


def new_encoder(codec: Codec, decoded: DecodedRequest) -> StreamEncoder:
    """Create the encoder of a stream. With a saver, the response is stored when it ends."""
    request = decoded.request
    ids = ResponseIds(request.identity.response_number)
    if decoded.saver is None or codec.stateful is None:
        return codec.stream(request, ids, time.time)
    return codec.stateful.stream(request, ids, time.time, decoded.saver.on_end)
