"""Block hashes of prompts, computed only for what is new.

A prompt that extends an earlier one of its session gets the hashes of the earlier one and new ones
for the rest.
"""

from array import array

from dovetail.routing.block_hashes import DynamoHashes, hash_dynamo_blocks
from dovetail.storage.lru import LruCache

#: Tokens per block of the approximate index. A multiple of the block sizes of engines, which keeps
#: the index small; the rest of a prompt counts as not cached.
INDEX_BLOCK_TOKENS = 256
#: Memory for the prompts with which new ones are compared.
MAX_HELD_BYTES = 64 << 20

_NO_HASHES = DynamoHashes([], [])


class _HashedPrompt:
    """A prompt, the hashes of its complete blocks, and what else the hashes depend on."""

    __slots__ = ("hashes", "ids", "scope")

    def __init__(self, ids: "array[int]", hashes: DynamoHashes, scope: "PromptScope") -> None:
        self.ids = ids
        self.hashes = hashes
        self.scope = scope

    @property
    def size(self) -> int:
        return len(self.ids) * self.ids.itemsize


#: The cache salt and the LoRA adapter, which separate equal prompts in an engine's cache.
PromptScope = tuple[str | None, str | None]


class PromptHasher:
    """Computes the hashes of prompts and keeps those of the last prompt of each session.

    `block_tokens`: the tokens of a block.
    `computed_blocks`: the number of blocks that were hashed, for tests and measurements.
    """

    def __init__(
        self, block_tokens: int = INDEX_BLOCK_TOKENS, max_held_bytes: int = MAX_HELD_BYTES
    ) -> None:
        self.block_tokens = block_tokens
        self.computed_blocks = 0
        self._prompts: LruCache[str, _HashedPrompt] = LruCache(
            max_size=max_held_bytes, size_of=lambda prompt: prompt.size
        )

    def hash_prompt(
        self, session: str | None, ids: "array[int]", scope: PromptScope = (None, None)
    ) -> DynamoHashes:
        """Return the hashes of the complete blocks of a prompt."""
        hashes = self.extend(self.known_hashes(session, ids, scope), ids, scope)
        self.keep(session, ids, hashes, scope)
        return hashes

    def known_hashes(
        self, session: str | None, ids: "array[int]", scope: PromptScope
    ) -> DynamoHashes:
        """Return the hashes of the leading blocks that the session's last prompt also had."""
        previous = self._prompts.get(session) if session is not None else None
        if previous is None or previous.scope != scope:
            return _NO_HASHES
        return previous.hashes.truncated(self._common_blocks(previous, ids))

    def extend(self, known: DynamoHashes, ids: "array[int]", scope: PromptScope) -> DynamoHashes:
        """Add the hashes of the other blocks. It may run in a thread."""
        salt, adapter = scope
        hashes = hash_dynamo_blocks(
            ids, self.block_tokens, known, cache_salt=salt, lora_name=adapter
        )
        self.computed_blocks += len(hashes.blocks) - len(known.blocks)
        return hashes

    def keep(
        self, session: str | None, ids: "array[int]", hashes: DynamoHashes, scope: PromptScope
    ) -> None:
        """Keep the hashes for the next prompt of the session."""
        if session is not None:
            self._prompts.put(session, _HashedPrompt(ids, hashes, scope))

    def forget(self, session: str) -> None:
        """Discard the last prompt of a session."""
        self._prompts.pop(session)

    def _common_blocks(self, previous: _HashedPrompt, ids: "array[int]") -> int:
        """Return how many leading blocks are equal. Comparing memory is much faster than hashing.

        A prompt usually extends the previous one; otherwise the end of the common part is searched.
        """
        size = self.block_tokens
        low, high = 0, min(len(previous.hashes.blocks), len(ids) // size)
        middle = high
        while low < high:
            if previous.ids[low * size : middle * size] == ids[low * size : middle * size]:
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return low
