"""Hooks into the library's prefix cache: cached tokens per request, salts, eviction order.

The library does not report cache hits, and has no tenants. Its cache finds blocks by the hashes of
their tokens. Each hash is chained to the one before it, and the first to nothing. Here, the first
is chained to the salt, so that requests with different salts have no hash in common. All of this
happens in the generation thread, one request at a time.

The salt is part of a request's id, because only the id is known at every place where a hash is
computed. This way the salt is available as long as the library holds blocks of a cancelled request.
"""

from collections.abc import Callable
from hashlib import blake2b
from importlib import import_module
from secrets import token_bytes
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

SALT_BYTES = 8  # the size of the library's hashes
#: The methods that mark blocks as complete, in the library's versions.
COMPLETE_METHODS = ("mark_complete_blocks", "mark_shareable_blocks_as_complete")
ALLOCATOR_MODULE = "transformers.generation.continuous_batching.cache_allocators.cache_allocator"
HashFunction = Callable[..., int]


class PrefixCacheHook:
    """Wraps a cache. If the library's names are unknown, salted requests share no blocks."""

    def __init__(self, cache: Any) -> None:
        self.is_supported = hasattr(cache, "search_prefix_match")
        self._key = token_bytes(SALT_BYTES)
        self._cached: dict[str, int | None] = {}
        self._salt: int | None = None
        complete_methods = [name for name in COMPLETE_METHODS if hasattr(cache, name)]
        self._can_salt = bool(complete_methods) and self._hook_hashes(cache)
        if self.is_supported:
            self._hook_search(cache)
        for name in complete_methods:
            self._hook_completion(cache, name)
        _use_lru_eviction(cache)

    def create_request_id(self, salt: str | None) -> str:
        """Create an id for a new request."""
        name = uuid4().hex
        if salt:
            name += "-" + blake2b(salt.encode(), digest_size=SALT_BYTES, key=self._key).hexdigest()
        self._cached[name] = None
        return name

    def cached_tokens(self, name: str) -> int:
        """Return how many tokens of the request's prompt were cached."""
        return self._cached.get(name) or 0

    def forget(self, name: str) -> None:
        self._cached.pop(name, None)

    def _hook_search(self, cache: Any) -> None:
        search = cache.search_prefix_match

        def watched(request_id: str, prompt_ids: list[int]) -> int:
            salt = _salt_of_request(request_id)
            if salt is not None and not self._can_salt:
                return 0
            self._salt = salt
            found: int = search(request_id, prompt_ids)
            # A restarted request finds its own blocks, so only the first search counts.
            if self._cached.get(request_id, 0) is None:
                self._cached[request_id] = min(found, len(prompt_ids) - 1)
            return found

        cache.search_prefix_match = watched

    def _hook_completion(self, cache: Any, name: str) -> None:
        complete = getattr(cache, name)

        def salted(state: Any, blocks: Any, *rest: Any, **more: Any) -> None:
            if not blocks:
                return
            self._salt = _salt_of_request(state.request_id)
            if self._salt is None or self._can_salt:
                complete(_as_unfinished(state), blocks, *rest, **more)

        setattr(cache, name, salted)

    def _hook_hashes(self, cache: Any) -> bool:
        """Hook the hash function. Return whether it was found."""
        blocks = getattr(cache, "_block_manager", None)
        if hasattr(blocks, "compute_hash"):
            blocks.compute_hash = self._salted_hash(blocks.compute_hash)  # type: ignore[union-attr]
            return True
        try:
            module = import_module(ALLOCATOR_MODULE)
            module.compute_block_hash = self._salted_hash(module.compute_block_hash)  # type: ignore[attr-defined]
        except (ImportError, AttributeError):
            return False
        return True

    def _salted_hash(self, plain: HashFunction) -> HashFunction:
        def chained(parent_hash: int | None, *rest: Any, **more: Any) -> int:
            return plain(self._salt if parent_hash is None else parent_hash, *rest, **more)

        return chained


class _FifoDict(dict[int, None]):
    """A dict whose `popitem` returns the oldest item."""

    def popitem(self) -> tuple[int, None]:
        first = next(iter(self))
        return first, self.pop(first)


def _use_lru_eviction(cache: Any) -> None:
    """Evict the least recently used blocks, a sequence's end before its beginning.

    Up to 5.18, the library evicts the most recently used blocks, which are the prefix that all
    requests share. From 5.19 on, it evicts all blocks that are not in use: see `PageRetention`.
    """
    blocks = getattr(cache, "_block_manager", None)
    if blocks is None or not hasattr(blocks, "_init_block_ids"):
        return
    free = blocks.free_blocks
    blocks._init_block_ids = _FifoDict(blocks._init_block_ids)
    blocks.free_blocks = lambda ids, shareable: free(ids[::-1], shareable)


def _as_unfinished(state: Any) -> Any:
    """Return the state as a request that has not finished yet.

    The library omits the blocks of a request's last step, which is the complete prompt of a request
    for a single token. These blocks could be gone, but only if steps overlap, and here they do not.
    """
    return SimpleNamespace(
        request_id=state.request_id,
        initial_tokens=state.initial_tokens,
        generated_tokens=state.generated_tokens,
        status=None,
    )


def _salt_of_request(name: str) -> int | None:
    digest = name.partition("-")[2]
    return int(digest, 16) if digest else None
