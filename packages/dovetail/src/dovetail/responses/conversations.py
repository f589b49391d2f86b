"""Conversations in the response store.

A conversation is a record with a pointer to its newest batch of items; each batch points to the one
before it. Batches never change, so they can be cached, and adding items costs only what is new. The
pointer is replaced only if it has not changed meanwhile, so processes that share the store never
lose each other's items.
"""

import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from dovetail.responses.backend import StoredResponse
from dovetail.responses.store import CHAIN_LINK_BYTES, ResponseStore, is_valid_id
from dovetail_model import (
    Overloaded,
    PreviousResponseNotFound,
    RequestTooLarge,
    ResponseNotFound,
)

_ID_PREFIX = "conv_"
_ID_BYTES = 24
_MAX_ATTEMPTS = 32  # to replace a pointer that other requests replace, too
_NAMESPACE = "\x1fconversations"  # no tenant's name contains the character

_Edit = Callable[[list[bytes]], Awaitable[Sequence[bytes]]]
_Change = Callable[[StoredResponse], Awaitable[StoredResponse]]


class Conversation(msgspec.Struct, frozen=True):
    """A conversation without its items.

    created_at: In seconds since the epoch.
    size_bytes: Size of the items, as reading them counts it. None in old records.
    """

    id: str
    created_at: int
    metadata: dict[str, str]
    size_bytes: int | None = None


def max_read_bytes(limit: int) -> int:
    """Return how large the items of a conversation may be to be read, if bodies have this limit.

    The output of a response is added even if the conversation has reached the limit.
    """
    return limit + limit // 4


class ConversationStore:
    """Stores the conversations of tenants in the response store."""

    __slots__ = ("_store",)

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def create(
        self, tenant: str, metadata: dict[str, str], items: Sequence[bytes] = ()
    ) -> Conversation:
        """Create a conversation with these items."""
        id = _ID_PREFIX + secrets.token_hex(_ID_BYTES)
        size = CHAIN_LINK_BYTES + (_batch_bytes(items) if items else 0)
        conversation = Conversation(id, int(time.time()), metadata, size)
        batch = None
        if items:
            batch = await self._add_batch(tenant, id, items, None)
        head = msgspec.json.encode(conversation)
        await self._store.add(_record(tenant, id, head=head, previous=batch))
        return conversation

    async def get(self, tenant: str, id: str) -> Conversation:
        """Return a conversation. Raises `ResponseNotFound` if it does not exist."""
        return _decode(await self._get(tenant, id))

    async def update_metadata(self, tenant: str, id: str, metadata: dict[str, str]) -> Conversation:
        """Replace the metadata of a conversation."""

        async def change(record: StoredResponse) -> StoredResponse:
            updated = msgspec.structs.replace(_decode(record), metadata=metadata)
            return msgspec.structs.replace(record, head=msgspec.json.encode(updated))

        return _decode(await self._change(tenant, id, change))

    async def delete(self, tenant: str, id: str) -> None:
        """Delete a conversation and its items."""
        record = await self._get(tenant, id)
        await self._store.delete(record.tenant, id)
        await self._delete_batches(record)

    async def append(self, tenant: str, id: str, items: Sequence[bytes], limit: int) -> None:
        """Add items at the end of a conversation.

        Raises `RequestTooLarge` if all items together are larger than `limit` bytes.
        """
        if not items:
            return

        async def change(record: StoredResponse) -> StoredResponse:
            size = await self._size(record, limit) + _batch_bytes(items)
            if size > limit:
                raise RequestTooLarge(f"The conversation exceeds the limit of {limit} bytes.")
            batch = await self._add_batch(tenant, id, items, record.previous)
            return msgspec.structs.replace(record, head=_with_size(record, size), previous=batch)

        await self._change(tenant, id, change)

    async def get_items(self, tenant: str, id: str, limit: int) -> list[bytes]:
        """Return the items of a conversation in order, as parts of JSON arrays.

        `limit` is their maximum size in bytes.
        """
        return await self._read_batches(await self._get(tenant, id), limit)

    async def replace_items(self, tenant: str, id: str, limit: int, edit: _Edit) -> Conversation:
        """Replace the items of a conversation by those that `edit` returns for the current ones."""
        replaced: list[StoredResponse] = []

        async def change(record: StoredResponse) -> StoredResponse:
            items = await edit(await self._read_batches(record, limit))
            batch = await self._add_batch(tenant, id, items, None) if items else None
            replaced[:] = [record]
            size = CHAIN_LINK_BYTES + (_batch_bytes(items) if items else 0)
            return msgspec.structs.replace(record, head=_with_size(record, size), previous=batch)

        conversation = _decode(await self._change(tenant, id, change))
        await self._delete_batches(replaced[0])
        return conversation

    async def _get(self, tenant: str, id: str) -> StoredResponse:
        record = await self._store.get(tenant + _NAMESPACE, id)
        if record is None or not record.head:
            raise _not_found(id)
        return record

    async def _change(self, tenant: str, id: str, change: _Change) -> StoredResponse:
        """Replace the record of a conversation, again if another request replaced it meanwhile."""
        for _ in range(_MAX_ATTEMPTS):
            record = await self._get(tenant, id)
            changed = await change(record)
            if await self._store.swap(record, changed):
                return changed
            if changed.previous is not None and changed.previous != record.previous:
                await self._store.delete(changed.tenant, changed.previous)
        raise Overloaded("Too many requests change this conversation at once; retry later.")

    async def _add_batch(
        self, tenant: str, id: str, items: Sequence[bytes], previous: str | None
    ) -> str:
        batch = f"{id}_{secrets.token_hex(8)}"
        await self._store.add(_record(tenant, batch, items=b",".join(items), previous=previous))
        return batch

    async def _size(self, record: StoredResponse, limit: int) -> int:
        size = _decode(record).size_bytes
        if size is not None:
            return size
        batches = await self._read_batches(record, limit)
        return CHAIN_LINK_BYTES * (1 + len(batches)) + sum(map(len, batches))

    async def _read_batches(self, record: StoredResponse, limit: int) -> list[bytes]:
        try:
            # The record is the end of the chain, so that reading items counts as its use.
            chain = await self._store.get_chain(record.tenant, record.id, limit)
        except PreviousResponseNotFound as error:
            message = f"Items of the conversation with id '{record.id}' are no longer stored."
            raise ResponseNotFound(message, param="conversation") from error
        return [batch.input for batch in chain if batch.input]

    async def _delete_batches(self, record: StoredResponse) -> None:
        if record.previous is None:
            return
        for batch in await self._store.get_available_chain(
            record.tenant, record.previous, sys.maxsize
        ):
            await self._store.delete(batch.tenant, batch.id)


def _record(
    tenant: str, id: str, *, head: bytes = b"", items: bytes = b"", previous: str | None = None
) -> StoredResponse:
    return StoredResponse(
        tenant=tenant + _NAMESPACE,
        id=id,
        created_at=time.time(),
        status="completed",
        head=head,
        input=items,
        previous=previous,
    )


def _batch_bytes(items: Sequence[bytes]) -> int:
    return CHAIN_LINK_BYTES + sum(map(len, items)) + len(items) - 1  # with commas


def _with_size(record: StoredResponse, size: int) -> bytes:
    """Return the head of a conversation with a new size."""
    return msgspec.json.encode(msgspec.structs.replace(_decode(record), size_bytes=size))


def _decode(record: StoredResponse) -> Conversation:
    return msgspec.json.decode(record.head, type=Conversation)


def _not_found(id: str) -> ResponseNotFound:
    name = f" with id '{id}'" if is_valid_id(id) else ""
    return ResponseNotFound(f"Conversation{name} not found.", param="conversation")
