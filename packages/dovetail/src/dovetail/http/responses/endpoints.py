"""The endpoints about responses that are kept, and about conversations as a whole."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec

from dovetail.http.body import read_body
from dovetail.http.exchange import JSON, Exchange
from dovetail.http.options import HttpOptions
from dovetail.http.responses.background import Background
from dovetail.http.responses.conversation import Conversation
from dovetail.http.responses.run import Key
from dovetail.http.routes import Route
from dovetail.http.tracker import Account
from dovetail.pipeline.execution import count_tokens
from dovetail.pipeline.registry import ModelRegistry
from dovetail.responses.response import StoredResponse
from dovetail.responses.store import is_valid_id
from dovetail_model import InvalidRequest, Overloaded, ResponseNotFound
from dovetail_protocols import (
    RESPONSES,
    encode_input_tokens,
    encode_items,
    item_id,
    listed_item,
    whole_response,
    with_model,
)

_PAGE, _MOST = 20, 100  # items of a page
_TRUE = ("true", "1")
_PIECE = 1 << 18  # bytes of an answer that are sent in one go
_MOST_LEAVING = 16  # answers as large as a body may be: what is not read yet is in memory
_RETRY_AFTER = 2.0  # seconds

Forget = Callable[[Key], Awaitable[None]]


class Responses:
    """What a client may ask of responses once they are there."""

    def __init__(
        self, service: ModelRegistry, options: HttpOptions, background: Background, forget: Forget
    ) -> None:
        self._service = service
        self._options = options
        self._kept = service.response_store
        self._background = background
        self._forget = forget
        self._leaving = 0  # bytes of large answers that are being read

    def routes(self) -> list[Route]:
        one = "/v1/responses/{id}"
        return [
            Route("POST", "/v1/responses/input_tokens", self._count, "Exact size of an input"),
            Route("GET", one, self._show, "A response that is kept"),
            Route("DELETE", one, self._delete, "Forget a response"),
            Route("GET", f"{one}/input_items", self._list, "What a response was given"),
            Route("POST", f"{one}/cancel", self._cancel, "Call off a response in the background"),
        ]

    async def _show(self, exchange: Exchange, account: Account) -> None:
        query = exchange.query
        if query.get("stream", "").lower() in _TRUE:
            after = _number(query, "starting_after", -1)
            await self._required(exchange)  # and not held for as long as somebody follows
            await self._background.follow(exchange, _id(exchange), after)
            return
        await self._tell(exchange, _whole(await self._required(exchange)))

    async def _delete(self, exchange: Exchange, account: Account) -> None:
        id = _id(exchange)
        key = (exchange.tenant, id)
        if not await self._kept.delete(*key):
            raise _unknown(id)
        await asyncio.gather(self._forget(key), self._background.others.forget(key))
        answer = {"id": id, "object": "response", "deleted": True}
        await exchange.answer(200, msgspec.json.encode(answer))

    async def _cancel(self, exchange: Exchange, account: Account) -> None:
        response = await self._required(exchange)
        if not response.background:
            raise InvalidRequest("Cannot cancel a synchronous response.")
        if response.running:
            response = await self._background.cancel(response)
        await self._tell(exchange, _whole(response))

    async def _list(self, exchange: Exchange, account: Account) -> None:
        """The items that the model was given, with those of the responses before."""
        query = exchange.query
        limit = _number(query, "limit", _PAGE)
        if not 1 <= limit <= _MOST:
            raise InvalidRequest(f"limit: Expected 1 to {_MOST}", param="limit")
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("order: Expected asc or desc", param="order")
        await self._required(exchange)
        chain = await self._kept.get_available_chain(exchange.tenant, _id(exchange), self._options.max_body_bytes)
        items = [*_items(chain)]
        if order == "desc":
            items.reverse()
        start = _behind(items, query.get("after"))
        page = items[start : start + limit]
        more = start + limit < len(items)
        await self._tell(exchange, encode_items(page, has_more=more))

    async def _count(self, exchange: Exchange, account: Account) -> None:
        """By the same rendering as the real request."""
        options = self._options
        body = await read_body(exchange, options.max_body_bytes, options.body_timeout)
        named = with_model(body, self._service.entries[0].name)
        conversation = Conversation(self._kept, exchange, named)
        await conversation.join(options.max_body_bytes)
        memory = self._service.memory
        request = RESPONSES.decode(conversation.body, exchange.headers, memory)
        identity = msgspec.structs.replace(request.identity, tenant=exchange.tenant)
        request = msgspec.structs.replace(request, identity=identity)
        tokens = await count_tokens(self._service.find(request.model), request)
        await exchange.answer(200, encode_input_tokens(tokens))

    async def _tell(self, exchange: Exchange, body: bytes) -> None:
        """A large answer leaves piece by piece, and there are only so many: not everybody reads."""
        if len(body) <= _PIECE:
            await exchange.answer(200, body)
            return
        if self._leaving + len(body) > _MOST_LEAVING * self._options.max_body_bytes:
            raise Overloaded("Too much waits to be read.", retry_after=_RETRY_AFTER)
        self._leaving += len(body)
        try:
            await exchange.begin(200, JSON, [("content-length", str(len(body)))])
            for at in range(0, len(body), _PIECE):
                part = {"type": "http.response.body", "body": body[at : at + _PIECE]}
                await exchange.send({**part, "more_body": at + _PIECE < len(body)})
        finally:
            self._leaving -= len(body)

    async def _required(self, exchange: Exchange) -> StoredResponse:
        id = _id(exchange)
        found = await self._kept.get(exchange.tenant, id)
        found = found or self._background.known((exchange.tenant, id))
        if found is None:
            raise _unknown(id)
        return await self._background.current(found)


def _id(exchange: Exchange) -> str:
    return exchange.path.removeprefix("/v1/responses/").partition("/")[0]


def _whole(response: StoredResponse) -> bytes:
    return whole_response(response.head, response.output)


def _unknown(id: str) -> ResponseNotFound:
    named = f" with id '{id}'" if is_valid_id(id) else ""
    return ResponseNotFound(f"Response{named} not found.")


def _number(query: dict[str, str], name: str, otherwise: int) -> int:
    given = query.get(name)
    if given is None:
        return otherwise
    if not given.isdecimal() or len(given) > 9:
        raise InvalidRequest(f"{name}: Expected a number", param=name)
    return int(given)


def _items(chain: Sequence[StoredResponse]) -> Iterator[dict[str, Any]]:
    """All that the last response was given, each item under an id of its own."""
    seen: set[str] = set()
    for one in chain:
        for part in (one.input, one.output) if one is not chain[-1] else (one.input,):
            for at, item in enumerate(msgspec.json.decode(b"[%b]" % part)):
                id = item.get("id")
                if not isinstance(id, str) or id in seen:
                    id = item_id(item, _digest(one.id, at, part is one.input))
                seen.add(id)
                yield listed_item(item, id)


def _digest(*place: object) -> str:
    """The same for the same place, so that pages fit together."""
    return hashlib.sha256(repr(place).encode()).hexdigest()[:24]


def _behind(items: Sequence[dict[str, Any]], after: str | None) -> int:
    if after is None:
        return 0
    for at, item in enumerate(items):
        if item["id"] == after:
            return at + 1
    raise InvalidRequest("after: There is no such item", param="after")
