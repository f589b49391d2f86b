"""The endpoints of conversations and their items."""

from typing import Any

import msgspec

from dovetail.http.body import read_body, run_decoder
from dovetail.http.exchange import ApiExchange
from dovetail.http.options import HttpOptions
from dovetail.http.responses.conversation_items import (
    decode_batches,
    encode_each,
    new_items,
    resolve_items,
)
from dovetail.http.responses.paging import check_page, encode_page
from dovetail.http.routes import Handler, Route
from dovetail.http.tracker import RequestTracker
from dovetail.responses.conversations import Conversation, ConversationStore, max_read_bytes
from dovetail.responses.store import ResponseStore
from dovetail_model import InvalidRequest, ResponseNotFound
from dovetail_protocols import (
    RESPONSES,
    ConversationBody,
    decode_conversation,
    encode_conversation,
    encode_deleted_conversation,
    encode_items,
)

Item = dict[str, Any]


class ConversationEndpoints:
    """Create, retrieve, update and delete conversations and their items."""

    def __init__(
        self, conversations: ConversationStore, responses: ResponseStore, options: HttpOptions
    ) -> None:
        self._conversations = conversations
        self._responses = responses
        self._options = options

    def routes(self) -> list[Route]:
        path = "/v1/conversations"
        one, items = f"{path}/{{id}}", f"{path}/{{id}}/items"
        item = f"{items}/{{item_id}}"
        table: list[tuple[str, str, Handler, str]] = [
            ("POST", path, self._create, "Create a conversation"),
            ("GET", one, self._get, "Get a conversation"),
            ("POST", one, self._update, "Update the metadata of a conversation"),
            ("DELETE", one, self._delete, "Delete a conversation"),
            ("GET", items, self._list_items, "List the items of a conversation"),
            ("POST", items, self._create_items, "Add items to a conversation"),
            ("GET", item, self._get_item, "Get an item of a conversation"),
            ("DELETE", item, self._delete_item, "Delete an item of a conversation"),
        ]
        return [Route(*columns, codec=RESPONSES) for columns in table]

    async def _create(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        body = await self._read(exchange)
        items = await self._new_items(exchange, body)
        conversation = await self._conversations.create(
            exchange.tenant, body.metadata or {}, encode_each(items)
        )
        await exchange.respond(200, _encode(conversation))

    async def _get(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        id, _ = _ids(exchange)
        await exchange.respond(200, _encode(await self._conversations.get(exchange.tenant, id)))

    async def _update(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        id, _ = _ids(exchange)
        body = await self._read(exchange)
        if body.metadata is None:
            raise InvalidRequest("metadata: Field required", param="metadata")
        updated = await self._conversations.update_metadata(exchange.tenant, id, body.metadata)
        await exchange.respond(200, _encode(updated))

    async def _delete(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        id, _ = _ids(exchange)
        await self._conversations.delete(exchange.tenant, id)
        await exchange.respond(200, encode_deleted_conversation(id))

    async def _list_items(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        check_page(exchange.query)
        items = await self._items(exchange)
        await exchange.respond(200, encode_page(items, exchange.query))

    async def _create_items(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        id, _ = _ids(exchange)
        body = await self._read(exchange)
        if not body.items:
            raise InvalidRequest("items: must not be empty", param="items")
        items = await self._new_items(exchange, body)
        await self._conversations.append(
            exchange.tenant, id, encode_each(items), self._options.max_body_bytes
        )
        await exchange.respond(200, encode_items(items, has_more=False))

    async def _get_item(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        _, wanted = _ids(exchange)
        for item in await self._items(exchange):
            if item["id"] == wanted:
                await exchange.respond(200, msgspec.json.encode(item))
                return
        raise _item_not_found()

    async def _delete_item(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        id, unwanted = _ids(exchange)

        def edit(batches: list[bytes]) -> list[bytes]:
            items = decode_batches(batches)
            remaining = [item for item in items if item["id"] != unwanted]
            if len(remaining) == len(items):
                raise _item_not_found()
            return encode_each(remaining)

        conversation = await self._conversations.replace_items(
            exchange.tenant, id, max_read_bytes(self._options.max_body_bytes), edit
        )
        await exchange.respond(200, _encode(conversation))

    async def _read(self, exchange: ApiExchange) -> ConversationBody:
        options = self._options
        body = await read_body(
            exchange, options.max_body_bytes, options.body_timeout, options.request_limits
        )
        return await run_decoder(body, lambda: decode_conversation(body, options.request_limits))

    async def _new_items(self, exchange: ApiExchange, body: ConversationBody) -> list[Item]:
        """Return the items of a body as they are stored, with references resolved."""
        limit = self._options.max_body_bytes
        return new_items(await resolve_items(self._responses, exchange, body.items or (), limit))

    async def _items(self, exchange: ApiExchange) -> list[Item]:
        id, _ = _ids(exchange)
        limit = max_read_bytes(self._options.max_body_bytes)
        return decode_batches(await self._conversations.get_items(exchange.tenant, id, limit))


def _ids(exchange: ApiExchange) -> tuple[str, str]:
    """Return the ids of the conversation and of the item in the path."""
    id, _, rest = exchange.path.removeprefix("/v1/conversations/").partition("/")
    return id, rest.removeprefix("items/")


def _encode(conversation: Conversation) -> bytes:
    return encode_conversation(conversation.id, conversation.created_at, conversation.metadata)


def _item_not_found() -> ResponseNotFound:
    return ResponseNotFound("Item not found in this conversation.", param="item_id")
