"""The endpoints of conversations and their items."""

import msgspec

from dovetail.http.body import read_body, run_decoder, run_sized
from dovetail.http.exchange import ApiExchange
from dovetail.http.memory import reserve_memory
from dovetail.http.options import HttpOptions
from dovetail.http.responses.conversation_items import (
    decode_batches,
    encode_each,
    new_items,
    resolve_items,
)
from dovetail.http.responses.large_bodies import LargeBodySender
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


class ConversationEndpoints:
    """Create, retrieve, update and delete conversations and their items."""

    def __init__(
        self,
        conversations: ConversationStore,
        responses: ResponseStore,
        options: HttpOptions,
        sender: LargeBodySender,
    ) -> None:
        self._conversations = conversations
        self._responses = responses
        self._options = options
        self._sender = sender

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
        items, _ = await self._new_items(exchange, body)
        conversation = await self._conversations.create(exchange.tenant, body.metadata or {}, items)
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
        batches, size = await self._batches(exchange)
        page = await run_sized(size, lambda: encode_page(decode_batches(batches), exchange.query))
        await self._sender.send(exchange, page)

    async def _create_items(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        id, _ = _ids(exchange)
        body = await self._read(exchange)
        if not body.items:
            raise InvalidRequest("items: must not be empty", param="items")
        items, added = await self._new_items(exchange, body)
        await self._conversations.append(exchange.tenant, id, items, self._options.max_body_bytes)
        await self._sender.send(exchange, added)

    async def _get_item(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        _, wanted = _ids(exchange)
        batches, size = await self._batches(exchange)

        def find() -> bytes:
            for item in decode_batches(batches):
                if item["id"] == wanted:
                    return msgspec.json.encode(item)
            raise _item_not_found()

        await self._sender.send(exchange, await run_sized(size, find))

    async def _delete_item(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        id, unwanted = _ids(exchange)

        def remove(batches: list[bytes]) -> list[bytes]:
            items = decode_batches(batches)
            remaining = [item for item in items if item["id"] != unwanted]
            if len(remaining) == len(items):
                raise _item_not_found()
            return encode_each(remaining)

        async def edit(batches: list[bytes]) -> list[bytes]:
            size = self._reserve_memory(exchange, batches)
            return await run_sized(size, lambda: remove(batches))

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

    async def _new_items(
        self, exchange: ApiExchange, body: ConversationBody
    ) -> tuple[list[bytes], bytes]:
        """Return the items of a body as they are stored, with references resolved, and a list."""
        limit = self._options.max_body_bytes
        resolved = await resolve_items(self._responses, exchange, body.items or (), limit)

        def encode() -> tuple[list[bytes], bytes]:
            items = new_items(resolved)
            return encode_each(items), encode_items(items, has_more=False)

        return await run_sized(exchange.held_bytes, encode)

    async def _batches(self, exchange: ApiExchange) -> tuple[list[bytes], int]:
        """Return the items of a conversation as they are stored, and their size."""
        id, _ = _ids(exchange)
        limit = max_read_bytes(self._options.max_body_bytes)
        batches = await self._conversations.get_items(exchange.tenant, id, limit)
        return batches, self._reserve_memory(exchange, batches)

    def _reserve_memory(self, exchange: ApiExchange, batches: list[bytes]) -> int:
        size = sum(map(len, batches))
        reserve_memory(exchange, size, max_read_bytes(self._options.max_body_bytes))
        return size


def _ids(exchange: ApiExchange) -> tuple[str, str]:
    """Return the ids of the conversation and of the item in the path."""
    id, _, rest = exchange.path.removeprefix("/v1/conversations/").partition("/")
    return id, rest.removeprefix("items/")


def _encode(conversation: Conversation) -> bytes:
    return encode_conversation(conversation.id, conversation.created_at, conversation.metadata)


def _item_not_found() -> ResponseNotFound:
    return ResponseNotFound("Item not found in this conversation.", param="item_id")
