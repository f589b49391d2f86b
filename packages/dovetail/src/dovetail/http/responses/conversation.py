"""What a response goes on from, and how it is kept before its client sees the end of it."""

import time
from collections.abc import Sequence
from typing import cast

import msgspec

from dovetail.http.exchange import Exchange
from dovetail.http.ids import number_in
from dovetail.http.memory import hold
from dovetail.responses.connection_cache import CacheReservation
from dovetail.responses.response import StoredResponse, ResponseStatus
from dovetail.responses.store import ResponseStore, is_valid_id
from dovetail_model import Request, ResponseNotFound, TooLarge
from dovetail_protocols import (
    ResponsesEcho,
    input_items,
    item_references,
    items_by_id,
    joined_body,
    previous_response,
    resolved_body,
    split_response,
)

_PREFIX = "resp_"


class Conversation:
    """One request: its own body, all that it goes on from, and the body of both."""

    __slots__ = ("_exchange", "_kept", "_own", "_place", "_previous", "before", "body")

    def __init__(self, kept: ResponseStore, exchange: Exchange, own: bytes) -> None:
        self._kept = kept
        self._exchange = exchange
        self._own = own
        self._place = None if exchange.local is None else exchange.local.reserve()
        self._previous: str | None = None
        self.before: Sequence[StoredResponse] = ()
        self.body = own

    async def join(self, limit: int) -> None:
        """Finds what the request goes on from, and the items that it only names.

        PreviousNotFound, ResponseNotFound for an item, or TooLarge beyond the limit.
        """
        await self._resolve(limit)
        self._previous = previous_response(self._own)
        if self._previous is None:
            return
        exchange = self._exchange
        before = await self._kept.get_chain(exchange.tenant, self._previous, limit, exchange.local)
        self.before = before
        self.body = joined_body(self._own, (items for one in before for items in one.items))
        if len(self.body) > limit:
            raise TooLarge(f"The conversation is larger than {limit} bytes.")
        hold(exchange, len(self.body), limit)

    async def _resolve(self, limit: int) -> None:
        """Items that were answered before and are named by their ids, as some clients do."""
        named = item_references(self._own)
        if not named:
            return
        exchange = self._exchange
        numbers = [number for id in named if (number := number_in(id)) is not None]
        ids = [f"{_PREFIX}{number}" for number in numbers]
        outputs = await self._kept.get_outputs(exchange.tenant, ids, limit, exchange.local)
        found: dict[str, bytes] = {}
        for output in outputs:
            found |= items_by_id(output)
        size = len(self._own)
        for id in named:
            if id not in found:
                shown = f" with id '{id}'" if is_valid_id(id) else ""
                raise ResponseNotFound(f"Item{shown} not found.", param="input")
            size += len(found[id])
        if size > limit:
            raise TooLarge(f"The conversation is larger than {limit} bytes.")
        self._own = self.body = resolved_body(self._own, found)
        hold(exchange, len(self.body), limit)

    async def keeping(self, request: Request) -> "Keeping | None":
        """How the answer is to be kept, if anybody wants it."""
        echo, place = request.echo, self._place
        if not isinstance(echo, ResponsesEcho) or not (echo.store or place is not None):
            return None
        if echo.store:
            await self._kept.drain()
        blank = StoredResponse(
            tenant=self._exchange.tenant,
            id="",
            asked=time.time(),
            status="in_progress",
            head=b"",
            input=input_items(self._own),
            previous=self._previous,
            background=echo.background,
        )
        return Keeping(self._kept if echo.store else None, place, self.before, blank)


class Keeping:
    """Keeps one response: for everybody, for its connection, or for both."""

    __slots__ = ("_before", "_blank", "_held", "_kept", "_place", "response")

    def __init__(
        self,
        kept: ResponseStore | None,
        place: CacheReservation | None,
        before: Sequence[StoredResponse],
        blank: StoredResponse,
    ) -> None:
        self._kept = kept
        self._place = place
        self._before = before
        self._blank = blank
        self._held = b""
        self.response: StoredResponse | None = None

    @property
    def background(self) -> bool:
        return self._blank.background

    def keep(self, response: bytes, *, seen: float = 0.0) -> StoredResponse:
        """The response object as it is now. From here on it is found."""
        head, output = split_response(response)
        kept = self.response = msgspec.structs.replace(
            self._blank,
            id=msgspec.json.decode(head["id"]),
            status=cast("ResponseStatus", msgspec.json.decode(head["status"])),
            head=msgspec.json.encode(head),
            output=output,
            seen=seen,
        )
        if self._kept is not None:
            self._kept.put(kept)
        if self._place is not None:
            self._place.put(self._before, kept)
        return kept

    def forget(self) -> None:
        """From now on it is not kept for everybody."""
        self._kept = None

    def on_end(self, response: bytes, frame: bytes) -> bytes:
        """The end of a stream. Where others may be asked for it next, it waits for the store."""
        self.keep(response)
        if self._kept is None or not self._kept.has_peers:
            return frame
        self._held = frame
        return b""

    async def late(self) -> bytes:
        """What was held back: returned when the response is where others find it."""
        await self.settled()
        held, self._held = self._held, b""
        return held

    async def settled(self) -> None:
        """Returns when the response is where others find it, if others may be asked for it next."""
        if self._kept is not None and self._kept.has_peers:
            await self.written()

    async def written(self) -> None:
        """Returns when the response, as it is now, outlives this process."""
        if self._kept is not None and self.response is not None:
            await self._kept.wait_stored(self.response)
