"""Where one line of turns goes on from another, told by the ids themselves."""

from array import array
from bisect import insort
from collections.abc import Iterator
from hashlib import blake2b

from dovetail.ledger.entry import TOKEN_ID_TYPECODE

_INDEX_ID_BYTES = array(TOKEN_ID_TYPECODE).itemsize


class BranchIndex:
    """The ends of lines, found by the prompts that begin with them.

    Only hashes are held, so that many long lines cost little; a prompt is read once, whatever the
    number of lines.
    """

    __slots__ = ("_branches_by_digest", "_lengths")

    def __init__(self) -> None:
        self._branches_by_digest: dict[bytes, list[int]] = {}
        self._lengths: list[int] = []

    def add(self, branch: int, token_ids: "array[int]") -> None:
        """The line of this number ends with this whole."""
        size = len(token_ids) * _INDEX_ID_BYTES
        digest = blake2b(token_ids.tobytes(), digest_size=16).digest()
        self._branches_by_digest.setdefault(digest, []).append(branch)
        if size not in self._lengths:
            insort(self._lengths, size)

    def find_prefixes(self, prompt: "array[int]") -> Iterator[int]:
        """The lines whose whole this prompt begins with, longest first."""
        packed = memoryview(prompt).cast("B")
        found: list[int] = []
        hashed, at = blake2b(digest_size=16), 0
        for size in self._lengths:
            if size > len(packed):
                break
            hashed.update(packed[at:size])
            at = size
            found += self._branches_by_digest.get(hashed.copy().digest(), ())
        return reversed(found)
