"""The endpoints that generate: the same way for each API, told apart by its codec."""

import time

import msgspec

from dovetail.http.account import Account
from dovetail.http.admission import Admission
from dovetail.http.body import read_body
from dovetail.http.exchange import Exchange, end_of
from dovetail.http.ids import call_ids, new_id
from dovetail.http.lifeline import Lifeline
from dovetail.http.options import HttpOptions
from dovetail.http.raw import raw
from dovetail.http.stream import SSE, Streaming
from dovetail.http.whole import Whole
from dovetail.pipeline import Watch, answer, tokens_of
from dovetail.service import Offered, Served, Service
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    RateLimited,
    Request,
    Unsupported,
)
from dovetail_protocols import COMPLETIONS, RESPONSES, Codec, overflow_stream


class Generator:
    """Answers the requests that a model answers."""

    def __init__(self, service: Service, options: HttpOptions) -> None:
        self._service = service
        self._options = options
        self._admission = Admission(
            options.max_concurrent, options.max_queued, options.queue_timeout
        )
        self._raw = {one.name: raw(one) for one in service.served if isinstance(one, Served)}

    async def generate(self, exchange: Exchange, account: Account, codec: Codec) -> None:
        """One request, from its body to the end of its answer."""
        options = self._options
        body = await read_body(exchange, options.max_body_bytes, options.body_timeout)
        request = self._own(exchange, codec.decode(body, exchange.headers, self._service.memory))
        served = self._service.find(request.model)
        account.asked(request, served)
        if codec is COMPLETIONS:
            served = self._raw[tokens_of(served).name]
        try:
            async with (
                Lifeline(exchange.receive) as lifeline,
                self._admission.enter(codec, request.hints),
            ):
                await self._answer(exchange, account, codec, (served, request), lifeline)
        except (ContextOverflow, RateLimited) as error:
            if codec is not RESPONSES or not request.stream or exchange.status is not None:
                raise
            await self._overflow(exchange, account, request, error)

    async def _answer(
        self,
        exchange: Exchange,
        account: Account,
        codec: Codec,
        asked: tuple[Offered, Request],
        lifeline: Lifeline,
    ) -> None:
        served, request = asked
        watch = Watch(
            prepared=account.on_prepared,
            noted=account.on_note,
            inexact=account.on_inexact,
            migrated=account.on_migrated,
            relayed=account.on_relayed,
        )
        new_call_id = call_ids(codec.call_id_prefix)
        if request.stream:
            encoder = codec.stream(request, new_id, time.time)
            streaming = Streaming(exchange, account, codec, encoder, self._options.keep_alive)
            await streaming.run(answer(served, request, new_call_id, streaming, watch), lifeline)
            return
        whole = Whole(request, codec, account)
        await answer(served, request, new_call_id, whole, watch)
        body = whole.body()
        lifeline.release()
        await exchange.answer(200, body, headers=account.headers())

    def _own(self, exchange: Exchange, request: Request) -> Request:
        """The request with what the server knows of it: whose it is, which side channels it has."""
        if getattr(request.echo, "previous_response_id", None):
            raise Unsupported(
                "previous_response_id: responses are not kept here; send the whole input",
                param="previous_response_id",
            )
        if exchange.tenant:
            identity = msgspec.structs.replace(request.identity, tenant=exchange.tenant)
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
