"""The names of the keys of the ledger in Redis.

In a cluster, the keys of a tenant are spread over all nodes. Only the index of a chain and the open
turns after the same history have the same slot.
"""

import hashlib

from dovetail.storage.redis_client import RedisClient

_CLUSTER_SESSION_LISTS = 16  # per tenant


class LedgerKeys:
    """Builds the keys of a tenant."""

    __slots__ = ("_client",)

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    def entry(self, tenant: str, id: str) -> str:
        """Return the key of an entry: a hash with its body and the keys of its indexes."""
        return self._client.make_key(tenant, "entry", id)

    def call(self, tenant: str, call_key: str) -> str:
        """Return the key of the index of a call."""
        return self._client.make_key(tenant, "call", call_key)

    def chain(self, tenant: str, chain: bytes, chain_before: bytes) -> str:
        """Return the key of the index of a chain, with the slot of `open`."""
        return self._client.make_key(tenant, "chain", chain.hex(), tag=chain_before.hex())

    def open(self, tenant: str, chain_before: bytes) -> str:
        """Return the key of the open turns after this chain: a hash of their ids and sessions."""
        return self._client.make_key(tenant, "open", chain_before.hex())

    def session(self, tenant: str, session: str) -> str:
        """Return the key of a session. The name is hashed because the client chooses it."""
        return self._client.make_key(
            tenant, "session", hashlib.sha256(session.encode()).hexdigest()
        )

    def session_lists(self, tenant: str) -> list[str]:
        """Return the keys of the lists of sessions: in a cluster several, as each turn writes."""
        numbers = range(_CLUSTER_SESSION_LISTS) if self._client.is_cluster else [""]
        return [self._client.make_key(tenant, "sessions", str(number)) for number in numbers]

    def session_list(self, tenant: str, session: str) -> str:
        """Return the key of the list that contains this session."""
        keys = self.session_lists(tenant)
        return keys[hashlib.sha256(session.encode()).digest()[0] % len(keys)]
