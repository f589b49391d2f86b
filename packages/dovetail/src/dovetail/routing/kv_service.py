"""Dynamo's index of KV events, in this process.

`SelectionService` subscribes to the events of replicas in threads of its own. Only its index is
used: the policies of this package decide.
"""

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dovetail.routing.block_hashes import DynamoHashes, to_signed
from dovetail.routing.kv_endpoints import KvEventAddress

#: Converting the hashes of a prompt blocks the event loop for about 0.5 ms per 1,000 blocks.
MAX_QUERY_BLOCKS = 8192

_MODEL = "model"  # an index has the replicas of one model


class MissingKvExtra(RuntimeError):
    """The package of the index is not installed."""


class KvService(Protocol):
    """An index that is fed by the KV events of replicas."""

    async def subscribe(self, replica: int, address: KvEventAddress, block_tokens: int) -> None:
        """Add a replica with an empty cache, and subscribe to its events."""

    async def unsubscribe(self, replica: int) -> None:
        """Remove a replica, if it is known."""

    async def overlaps(self, hashes: DynamoHashes, tokens: int) -> Mapping[int, int]:
        """Return the leading blocks of a prompt that each subscribed replica has cached."""

    def close(self) -> None: ...


def create_kv_service() -> KvService:
    """Create Dynamo's service. Raises `MissingKvExtra` if it is not installed."""
    os.environ.setdefault("DYN_LOG", "error")  # it logs each replica and each decision
    try:
        module = importlib.import_module("dynamo.llm")
        service = module.SelectionService
    except (ImportError, AttributeError) as error:
        raise MissingKvExtra(
            "--kv-events requires the package ai-dynamo-runtime; install it with "
            f"pip install 'dovetail[kv]' ({error})"
        ) from error
    return DynamoKvService(service(indexer_threads=1))


class DynamoKvService:
    """The index of one model in Dynamo's `SelectionService`."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._replicas: set[int] = set()

    async def subscribe(self, replica: int, address: KvEventAddress, block_tokens: int) -> None:
        await self.unsubscribe(replica)
        worker: dict[str, Any] = {
            "worker_id": replica,
            "model_name": _MODEL,
            "endpoint": f"replica-{replica}",
            "block_size": block_tokens,
            "kv_events_endpoints": {0: address.events},
        }
        if address.replay is not None:
            worker["replay_endpoint"] = address.replay
        self._replicas.add(replica)
        await self._service.upsert_worker(worker)

    async def unsubscribe(self, replica: int) -> None:
        if replica in self._replicas:
            self._replicas.discard(replica)
            await self._service.delete_worker(replica)

    async def overlaps(self, hashes: DynamoHashes, tokens: int) -> Mapping[int, int]:
        if not (self._replicas and hashes.blocks):
            return dict.fromkeys(self._replicas, 0)
        found = await self._service.overlap_scores(
            {
                "model_name": _MODEL,
                "block_hashes": _to_signed(hashes.blocks),
                "sequence_hashes": _to_signed(hashes.sequences),
                "isl_tokens": tokens,
            }
        )
        return {worker["worker_id"]: worker["device_blocks"] for worker in found["workers"]}

    def close(self) -> None:
        self._service.shutdown()


def _to_signed(hashes: Sequence[int]) -> list[int]:
    return [to_signed(value) for value in hashes[:MAX_QUERY_BLOCKS]]
