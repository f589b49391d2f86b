"""Resolve the history that a request continues, and store responses before their stream ends."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import msgspec

from dovetail.http.body import run_decoder, run_sized
from dovetail.http.exchange import ApiExchange
from dovetail.http.memory import reserve_memory
from dovetail.http.responses.conversation_items import (
    decode_batches,
    encode_each,
    find_items,
    new_items,
)
from dovetail.responses.backend import ResponseStatus, StoredResponse
from dovetail.responses.connection_cache import CacheReservation
from dovetail.responses.conversations import ConversationStore, max_read_bytes
from dovetail.responses.store import ResponseStore
from dovetail_model import (
    DovetailError,
    InvalidRequest,
    Request,
    RequestTooLarge,
)
from dovetail_protocols import (
    ResponsesEcho,
    conversation_id,
    input_items,
    item_references,
    prepend_history,
    previous_response_id,
    resolve_references,
    split_response,
    unmatched_result_ids,
)

_ADDED_STATUSES = ("completed", "incomplete")  # of responses that are added to a conversation
_log = logging.getLogger(__name__)

AppendResponse = Callable[[StoredResponse], Awaitable[None]]


class ConversationResolver:
    """Resolve the history of one request.

    body: Body of the request, with the history after `resolve`.
    previous_responses: Responses that the request continues, the oldest first.
    """

    __slots__ = (
        "_conversation_id",
        "_conversations",
        "_exchange",
        "_limit",
        "_local_slot",
        "_own_body",
        "_previous_id",
        "_store",
        "body",
        "previous_responses",
    )

    def __init__(
        self,
        store: ResponseStore,
        conversations: ConversationStore,
        exchange: ApiExchange,
        body: bytes,
    ) -> None:
        self._store = store
        self._conversations = conversations
        self._conversation_id: str | None = None
        self._exchange = exchange
        self._limit = 0
        self._own_body = body
        self._local_slot = (
            None if exchange.local_responses is None else exchange.local_responses.reserve()
        )
        self._previous_id: str | None = None
        self.previous_responses: Sequence[StoredResponse] = ()
        self.body = body

    async def resolve(self, limit: int) -> None:
        """Insert the history that the request continues and the items that it refers to by id.

        Raises `PreviousResponseNotFound`, `ResponseNotFound` for an item or a conversation, or
        `RequestTooLarge` if the body exceeds `limit` bytes.
        """
        self._limit = limit
        await self._resolve_item_references(limit)
        own_body = self._own_body
        self._previous_id = await run_decoder(own_body, lambda: previous_response_id(own_body))
        self._conversation_id = await run_decoder(own_body, lambda: conversation_id(own_body))
        if self._conversation_id is not None:
            await self._resolve_conversation(self._conversation_id, limit)
        elif self._previous_id is not None:
            await self._resolve_previous(self._previous_id, limit)

    async def _resolve_conversation(self, id: str, limit: int) -> None:
        """Insert the items of a conversation."""
        if self._previous_id is not None:
            raise InvalidRequest(
                "`conversation` and `previous_response_id` cannot be combined",
                param="conversation",
            )
        items = await self._conversations.get_items(self._exchange.tenant, id, limit)
        await self._prepend(items, limit)

    async def _resolve_previous(self, id: str, limit: int) -> None:
        """Insert the items of a response and of those before it."""
        exchange = self._exchange
        previous = await self._store.get_chain(exchange.tenant, id, limit, exchange.local_responses)
        self._require_calls(previous)
        self.previous_responses = previous
        await self._prepend([items for one in previous for items in one.items], limit)

    async def _prepend(self, history: Sequence[bytes], limit: int) -> None:
        own_body = self._own_body
        size = len(own_body) + sum(map(len, history))
        if size + len(history) > limit:  # with commas
            raise RequestTooLarge(f"The conversation is larger than {limit} bytes.")
        reserve_memory(self._exchange, size, limit)
        self.body = await run_sized(size, lambda: prepend_history(own_body, history))

    def _require_calls(self, previous: Sequence[StoredResponse]) -> None:
        """Reject a tool result without its call over WebSockets, as Open Responses requires.

        The connection then evicts the response that the request continues, and its client sends
        the complete conversation again. Over HTTP, clients truncate histories between a call and
        its result, so such a result is accepted there.
        """
        local = self._exchange.local_responses
        if local is None:
            return
        for id in unmatched_result_ids(self._own_body):
            name = msgspec.json.encode(id)
            if not any(name in items for response in previous for items in response.items):
                local.evict(previous[-1].id)
                raise InvalidRequest(
                    f"No tool call found for the tool result with call_id {id[:128]!r}.",
                    param="input",
                )

    async def _resolve_item_references(self, limit: int) -> None:
        """Insert items of earlier responses that the request refers to by their ids."""
        own_body = self._own_body
        references = await run_decoder(own_body, lambda: item_references(own_body))
        if not references:
            return
        exchange = self._exchange
        items = await find_items(self._store, exchange, references, limit, param="input")
        if len(own_body) + sum(len(items[id]) for id in references) > limit:
            raise RequestTooLarge(f"The conversation is larger than {limit} bytes.")
        self._own_body = self.body = await run_decoder(
            own_body, lambda: resolve_references(own_body, items)
        )
        reserve_memory(exchange, len(self.body), limit)

    async def create_saver(self, request: Request) -> "ResponseSaver | None":
        """Create the saver of the response; None if the response is not stored."""
        echo, slot = request.echo, self._local_slot
        if not isinstance(echo, ResponsesEcho):
            return None
        if not echo.store and slot is None and self._conversation_id is None:
            return None
        if echo.store:
            await self._store.drain()
        own_body = self._own_body
        template = StoredResponse(
            tenant=self._exchange.tenant,
            id="",
            created_at=time.time(),
            status="in_progress",
            head=b"",
            input=await run_decoder(own_body, lambda: input_items(own_body)),
            previous=self._previous_id,
            background=echo.background,
        )
        saver = ResponseSaver(
            self._store if echo.store else None, slot, self.previous_responses, template
        )
        if self._conversation_id is not None:
            saver.append_to_conversation = self._append
        return saver

    async def _append(self, response: StoredResponse) -> None:
        """Add the input and the output of a finished response to the conversation."""
        id = self._conversation_id
        assert id is not None
        size = sum(map(len, response.items))
        items = await run_sized(
            size, lambda: encode_each(new_items(decode_batches(response.items)))
        )
        try:
            await self._conversations.append(
                self._exchange.tenant, id, items, max_read_bytes(self._limit)
            )
        except DovetailError as error:  # deleted or filled meanwhile, or the store failed
            _log.warning("conversation_append_failed", extra={"fields": {"error": error.kind}})


class ResponseSaver:
    """Save one response in the store, in the cache of its connection, or in both."""

    __slots__ = (
        "_held_frame",
        "_local_slot",
        "_previous_responses",
        "_store",
        "_template",
        "append_to_conversation",
        "response",
    )

    def __init__(
        self,
        store: ResponseStore | None,
        local_slot: CacheReservation | None,
        previous_responses: Sequence[StoredResponse],
        template: StoredResponse,
    ) -> None:
        self._store = store
        self._local_slot = local_slot
        self._previous_responses = previous_responses
        self._template = template
        self._held_frame = b""
        self.response: StoredResponse | None = None
        #: Adds the finished response to its conversation, before its client sees the end.
        self.append_to_conversation: AppendResponse | None = None

    @property
    def background(self) -> bool:
        return self._template.background

    def save(self, response: bytes, *, heartbeat_at: float = 0.0) -> StoredResponse:
        """Save the current state of the response. Afterwards, clients can retrieve it."""
        head, output = split_response(response)
        stored = self.response = msgspec.structs.replace(
            self._template,
            id=msgspec.json.decode(head["id"]),
            status=cast("ResponseStatus", msgspec.json.decode(head["status"])),
            head=msgspec.json.encode(head),
            output=output,
            heartbeat_at=heartbeat_at,
        )
        if self._store is not None:
            self._store.put(stored)
        if self._local_slot is not None:
            self._local_slot.put(self._previous_responses, stored)
        return stored

    def disable_store(self) -> None:
        """Stop writing to the store."""
        self._store = None

    def on_end(self, response: bytes, frame: bytes) -> bytes:
        """Save the response at the end of its stream and return the last frame.

        If other processes share the store, or the response belongs to a conversation, hold the
        frame until the next request can see the response.
        """
        self.save(response)
        has_peers = self._store is not None and self._store.has_peers
        if not has_peers and self.append_to_conversation is None:
            return frame
        self._held_frame = frame
        return b""

    async def release_held_frame(self) -> bytes:
        """Wait until the response is visible to peers, and return the held frame."""
        await self.wait_visible()
        frame, self._held_frame = self._held_frame, b""
        return frame

    async def wait_visible(self) -> None:
        """Wait until the response is in its conversation and visible to peers, if there are any."""
        append, response = self.append_to_conversation, self.response
        if append is not None and response is not None and response.status in _ADDED_STATUSES:
            self.append_to_conversation = None
            await append(response)
        if self._store is not None and self._store.has_peers:
            await self.wait_persisted()

    async def wait_persisted(self) -> None:
        """Wait until the current state of the response is written to the store."""
        if self._store is not None and self.response is not None:
            await self._store.wait_stored(self.response)
