"""What a response goes on from, and how it is kept before its client sees the end of it."""

import time
from collections.abc import Sequence
from typing import cast

import msgspec

from dovetail.http.exchange import ApiExchange
from dovetail.http.ids import parse_response_number
from dovetail.http.memory import reserve_memory
from dovetail.responses.backend import ResponseStatus, StoredResponse
from dovetail.responses.connection_cache import CacheReservation
from dovetail.responses.store import ResponseStore, is_valid_id
from dovetail_model import Request, RequestTooLarge, ResponseNotFound
from dovetail_protocols import (
    ResponsesEcho,
    input_items,
    item_references,
    items_by_id,
    prepend_history,
    previous_response_id,
    resolve_references,
    split_response,
)

_PREFIX = "resp_"


class ConversationResolver:
    """One request: its own body, all that it goes on from, and the body of both."""

    __slots__ = (
        "_exchange",
        "_local_slot",
        "_own_body",
        "_previous_id",
        "_store",
        "body",
        "previous_responses",
    )

    def __init__(self, kept: ResponseStore, exchange: ApiExchange, own: bytes) -> None:
        self._store = kept
        self._exchange = exchange
        self._own_body = own
        self._local_slot = (
            None if exchange.local_responses is None else exchange.local_responses.reserve()
        )
        self._previous_id: str | None = None
        self.previous_responses: Sequence[StoredResponse] = ()
        self.body = own

    async def resolve(self, limit: int) -> None:
        """Finds what the request goes on from, and the items that it only names.

        PreviousNotFound, ResponseNotFound for an item, or TooLarge beyond the limit.
        """
        await self._resolve_item_references(limit)
        self._previous_id = previous_response_id(self._own_body)
        if self._previous_id is None:
            return
        exchange = self._exchange
        before = await self._store.get_chain(
            exchange.tenant, self._previous_id, limit, exchange.local_responses
        )
        self.previous_responses = before
        self.body = prepend_history(
            self._own_body, (items for one in before for items in one.items)
        )
        if len(self.body) > limit:
            raise RequestTooLarge(f"The conversation is larger than {limit} bytes.")
        reserve_memory(exchange, len(self.body), limit)

    async def _resolve_item_references(self, limit: int) -> None:
        """Items that were answered before and are named by their ids, as some clients do."""
        named = item_references(self._own_body)
        if not named:
            return
        exchange = self._exchange
        numbers = [number for id in named if (number := parse_response_number(id)) is not None]
        ids = [f"{_PREFIX}{number}" for number in numbers]
        outputs = await self._store.get_outputs(
            exchange.tenant, ids, limit, exchange.local_responses
        )
        found: dict[str, bytes] = {}
        for output in outputs:
            found |= items_by_id(output)
        size = len(self._own_body)
        for id in named:
            if id not in found:
                shown = f" with id '{id}'" if is_valid_id(id) else ""
                raise ResponseNotFound(f"Item{shown} not found.", param="input")
            size += len(found[id])
        if size > limit:
            raise RequestTooLarge(f"The conversation is larger than {limit} bytes.")
        self._own_body = self.body = resolve_references(self._own_body, found)
        reserve_memory(exchange, len(self.body), limit)

    async def create_saver(self, request: Request) -> "ResponseSaver | None":
        """How the answer is to be kept, if anybody wants it."""
        echo, place = request.echo, self._local_slot
        if not isinstance(echo, ResponsesEcho) or not (echo.store or place is not None):
            return None
        if echo.store:
            await self._store.drain()
        blank = StoredResponse(
            tenant=self._exchange.tenant,
            id="",
            created_at=time.time(),
            status="in_progress",
            head=b"",
            input=input_items(self._own_body),
            previous=self._previous_id,
            background=echo.background,
        )
        return ResponseSaver(
            self._store if echo.store else None, place, self.previous_responses, blank
        )


class ResponseSaver:
    """Keeps one response: for everybody, for its connection, or for both."""

    __slots__ = (
        "_held_frame",
        "_local_slot",
        "_previous_responses",
        "_store",
        "_template",
        "response",
    )

    def __init__(
        self,
        kept: ResponseStore | None,
        place: CacheReservation | None,
        before: Sequence[StoredResponse],
        blank: StoredResponse,
    ) -> None:
        self._store = kept
        self._local_slot = place
        self._previous_responses = before
        self._template = blank
        self._held_frame = b""
        self.response: StoredResponse | None = None

    @property
    def background(self) -> bool:
        return self._template.background

    def save(self, response: bytes, *, heartbeat_at: float = 0.0) -> StoredResponse:
        """The response object as it is now. From here on it is found."""
        head, output = split_response(response)
        kept = self.response = msgspec.structs.replace(
            self._template,
            id=msgspec.json.decode(head["id"]),
            status=cast("ResponseStatus", msgspec.json.decode(head["status"])),
            head=msgspec.json.encode(head),
            output=output,
            heartbeat_at=heartbeat_at,
        )
        if self._store is not None:
            self._store.put(kept)
        if self._local_slot is not None:
            self._local_slot.put(self._previous_responses, kept)
        return kept

    def disable_store(self) -> None:
        """From now on it is not kept for everybody."""
        self._store = None

    def on_end(self, response: bytes, frame: bytes) -> bytes:
        """The end of a stream. Where others may be asked for it next, it waits for the store."""
        self.save(response)
        if self._store is None or not self._store.has_peers:
            return frame
        self._held_frame = frame
        return b""

    async def release_held_frame(self) -> bytes:
        """What was held back: returned when the response is where others find it."""
        await self.wait_visible()
        held, self._held_frame = self._held_frame, b""
        return held

    async def wait_visible(self) -> None:
        """Returns when the response is where others find it, if others may be asked for it next."""
        if self._store is not None and self._store.has_peers:
            await self.wait_persisted()

    async def wait_persisted(self) -> None:
        """Returns when the response, as it is now, outlives this process."""
        if self._store is not None and self.response is not None:
            await self._store.wait_stored(self.response)
