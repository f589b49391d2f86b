"""The endpoints of stored responses, and the input token count of the Responses API."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec

from dovetail.http.body import read_body, run_decoder, run_sized
from dovetail.http.exchange import ApiExchange
from dovetail.http.memory import reserve_memory
from dovetail.http.options import HttpOptions
from dovetail.http.responses.background import BackgroundResponses
from dovetail.http.responses.conversation import ConversationResolver
from dovetail.http.responses.large_bodies import LargeBodySender
from dovetail.http.responses.paging import check_page, encode_page, parse_int
from dovetail.http.responses.run import ResponseKey
from dovetail.http.routes import Handler, Route
from dovetail.http.tracker import RequestTracker
from dovetail.pipeline.execution import count_tokens
from dovetail.pipeline.registry import ModelRegistry
from dovetail.responses.backend import StoredResponse
from dovetail.responses.store import is_valid_id
from dovetail_model import InvalidRequest, ResponseNotFound
from dovetail_protocols import (
    RESPONSES,
    check_request,
    complete_item,
    encode_input_tokens,
    item_id,
    join_response,
    with_default_model,
)

_TRUE_VALUES = ("true", "1")

ForgetResponse = Callable[[ResponseKey], Awaitable[None]]


class ResponsesEndpoints:
    """Retrieve, delete, cancel and list stored responses."""

    def __init__(
        self,
        service: ModelRegistry,
        options: HttpOptions,
        background: BackgroundResponses,
        forget: ForgetResponse,
        sender: LargeBodySender,
    ) -> None:
        self._service = service
        self._options = options
        self._store = service.response_store
        self._conversations = service.conversations
        self._background = background
        self._forget = forget
        self._sender = sender

    def routes(self) -> list[Route]:
        path = "/v1/responses/{id}"
        table: list[tuple[str, str, Handler, str]] = [
            (
                "POST",
                "/v1/responses/input_tokens",
                self._count_input_tokens,
                "Count the input tokens of a request",
            ),
            ("GET", path, self._get, "Get a stored response"),
            ("DELETE", path, self._delete, "Delete a stored response"),
            ("GET", f"{path}/input_items", self._list_input_items, "List the input items"),
            ("POST", f"{path}/cancel", self._cancel, "Cancel a background response"),
        ]
        return [Route(*columns, codec=RESPONSES) for columns in table]

    async def _get(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        query = exchange.query
        if query.get("stream", "").lower() in _TRUE_VALUES:
            after = parse_int(query, "starting_after", -1)
            # The result is not used, so that it is not held in memory while the client follows.
            await self._require_response(exchange)
            await self._background.follow(exchange, _response_id(exchange), after)
            return
        await self._sender.send(exchange, _encode_response(await self._require_response(exchange)))

    async def _delete(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        id = _response_id(exchange)
        key = (exchange.tenant, id)
        if not await self._store.delete(*key):
            raise _not_found(id)
        await asyncio.gather(self._forget(key), self._background.peers.forget(key))
        body = {"id": id, "object": "response", "deleted": True}
        await exchange.respond(200, msgspec.json.encode(body))

    async def _cancel(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        response = await self._require_response(exchange)
        if not response.background:
            raise InvalidRequest("Cannot cancel a synchronous response.")
        if response.running:
            response = await self._background.cancel(response)
        await self._sender.send(exchange, _encode_response(response))

    async def _list_input_items(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        """List the input items of a response, including those of the responses before it."""
        check_page(exchange.query)
        await self._require_response(exchange)
        chain = await self._store.get_available_chain(
            exchange.tenant, _response_id(exchange), self._options.max_body_bytes
        )
        size = sum(len(items) for response in chain for items in response.items)
        reserve_memory(exchange, size, self._options.max_body_bytes)
        page = await run_sized(
            size, lambda: encode_page([*_iter_input_items(chain)], exchange.query)
        )
        await self._sender.send(exchange, page)

    async def _count_input_tokens(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        """Count the input tokens exactly: the request is rendered as usual."""
        options = self._options
        body = await read_body(
            exchange, options.max_body_bytes, options.body_timeout, options.request_limits
        )
        body_with_model = await run_decoder(
            body, lambda: with_default_model(body, self._service.entries[0].name)
        )
        conversation = ConversationResolver(
            self._store, self._conversations, exchange, body_with_model
        )
        await conversation.resolve(options.max_body_bytes)
        memory, joined = self._service.memory, conversation.body
        request = await run_decoder(
            joined, lambda: RESPONSES.decode(joined, exchange.headers, memory)
        )
        check_request(
            request, options.request_limits, RESPONSES.history_field, body_bytes=len(joined)
        )
        identity = msgspec.structs.replace(request.identity, tenant=exchange.tenant)
        request = msgspec.structs.replace(request, identity=identity)
        request = self._service.resolve_tools(request)
        count = await count_tokens(self._service.find(request.model), request)
        await exchange.respond(200, encode_input_tokens(count.tokens))

    async def _require_response(self, exchange: ApiExchange) -> StoredResponse:
        id = _response_id(exchange)
        response = await self._store.get(exchange.tenant, id)
        response = response or self._background.find_running((exchange.tenant, id))
        if response is None:
            raise _not_found(id)
        return await self._background.refresh(response)


def _response_id(exchange: ApiExchange) -> str:
    return exchange.path.removeprefix("/v1/responses/").partition("/")[0]


def _encode_response(response: StoredResponse) -> bytes:
    return join_response(response.head, response.output)


def _not_found(id: str) -> ResponseNotFound:
    name = f" with id '{id}'" if is_valid_id(id) else ""
    return ResponseNotFound(f"Response{name} not found.")


def _iter_input_items(chain: Sequence[StoredResponse]) -> Iterator[dict[str, Any]]:
    """Yield all input items of the last response, each with a unique id."""
    seen: set[str] = set()
    for response in chain:
        for part in (
            (response.input, response.output) if response is not chain[-1] else (response.input,)
        ):
            for at, item in enumerate(msgspec.json.decode(b"[%b]" % part)):
                id = item.get("id")
                if not isinstance(id, str) or id in seen:
                    id = item_id(item, _position_digest(response.id, at, part is response.input))
                seen.add(id)
                yield complete_item(item, id)


def _position_digest(*position: object) -> str:
    """Return a digest that depends only on the position, so that pages are consistent."""
    return hashlib.sha256(repr(position).encode()).hexdigest()[:24]
