"""Decode requests of all APIs: read the body, insert stored history, add the server's fields."""

import msgspec

from dovetail.access.auth import cache_scope
from dovetail.http.body import read_body, run_decoder
from dovetail.http.exchange import ApiExchange
from dovetail.http.ids import new_response_number
from dovetail.http.options import HttpOptions
from dovetail.http.responses.conversation import ConversationResolver
from dovetail.pipeline.registry import ModelRegistry
from dovetail_model import Request
from dovetail_protocols import Codec, StreamErrors, check_request


class RequestDecoder:
    """Decodes requests for generation."""

    def __init__(self, service: ModelRegistry, options: HttpOptions) -> None:
        self._service = service
        self._options = options

    async def read_body(self, exchange: ApiExchange) -> bytes:
        options = self._options
        return await read_body(
            exchange, options.max_body_bytes, options.body_timeout, options.request_limits
        )

    async def decode(
        self, exchange: ApiExchange, codec: Codec, body: bytes
    ) -> tuple[Request, ConversationResolver | None]:
        """Decode a body. Returns what resolved its history if the API stores responses."""
        if codec.stateful is None:
            return await self._decode_body(exchange, codec, body), None
        service = self._service
        conversation = ConversationResolver(
            service.response_store, service.conversations, exchange, body
        )
        await conversation.resolve(self._options.max_body_bytes)
        return await self._decode_body(exchange, codec, conversation.body), conversation

    async def decode_without_input(self, exchange: ApiExchange, errors: StreamErrors) -> Request:
        """Decode a request without its input: rejecting a request must be cheap."""
        body = await self.read_body(exchange)
        request = await run_decoder(body, lambda: errors.decode(body, exchange.headers))
        return self._add_server_fields(exchange, request)

    async def _decode_body(self, exchange: ApiExchange, codec: Codec, body: bytes) -> Request:
        headers, memory = exchange.headers, self._service.memory
        request = await run_decoder(body, lambda: codec.decode(body, headers, memory))
        check_request(
            request, self._options.request_limits, codec.history_field, body_bytes=len(body)
        )
        return self._add_server_fields(exchange, request)

    def _add_server_fields(self, exchange: ApiExchange, request: Request) -> Request:
        """Add the fields that the server determines: tenant, response number, dispatch events."""
        tenant = exchange.tenant or request.identity.tenant
        identity = msgspec.structs.replace(
            request.identity,
            tenant=tenant,
            response_number=new_response_number(),
            cache_scope=cache_scope(exchange.caller, self._options.prefix_sharing),
        )
        request = msgspec.structs.replace(request, identity=identity)
        if self._options.dispatch:
            channels = request.hints.dispatch | self._options.dispatch
            hints = msgspec.structs.replace(request.hints, dispatch=channels)
            request = msgspec.structs.replace(request, hints=hints)
        return request
