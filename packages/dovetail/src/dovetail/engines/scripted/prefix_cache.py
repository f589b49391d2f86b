"""A simulated paged prefix cache: which blocks of a prompt are cached.

A block is 16 tokens after one exact prefix. When there are more blocks than the capacity, the least
recently used one is evicted. Of blocks that were used together the deepest is evicted first, so
that the remaining blocks always form prefixes.

Blocks that were only ever used together form one node, a run of bytes. A lookup compares memory,
and takes as many Python steps as there are forks and turns on its path, not as many as blocks or
tokens.
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

ID_TYPECODE = "I"
ID_SIZE_BYTES = array(ID_TYPECODE).itemsize


@dataclass(eq=False, slots=True)
class _Node:
    """A run of blocks that follows its parent's run. A root has only a salt: no parent, no run."""

    run: bytes
    parent: "_Node | None"
    salt: str | None = None
    children: "dict[bytes, _Node]" = field(default_factory=dict)


class PrefixCache:
    """Cached blocks, separate for each salt."""

    def __init__(self, capacity: int, block_size: int = 16) -> None:
        self._block_size = block_size
        self._block_bytes = block_size * ID_SIZE_BYTES
        self._capacity = capacity
        self._roots: dict[str | None, _Node] = {}
        # All nodes except the roots, the next to evict first: a child is before its parent. It is
        # not an `LruCache` because a node is evicted block by block, from the end of its run.
        self._eviction_order: OrderedDict[_Node, None] = OrderedDict()
        self.blocks = 0

    @property
    def usage(self) -> float:
        """The used fraction of the capacity, from 0 to 1."""
        return self.blocks / self._capacity if self._capacity else 0.0

    def look_up(self, prompt: "array[int]", salt: str | None = None) -> int:
        """Return how many prompt tokens are cached: complete blocks, never the complete prompt."""
        root = self._roots.get(salt)
        if root is None or not prompt:
            return 0
        path, matched = self._walk(root, _to_bytes(prompt))
        self._touch(path)
        return (
            min(matched // self._block_bytes, (len(prompt) - 1) // self._block_size)
            * self._block_size
        )

    def add(self, tokens: "array[int]", salt: str | None = None) -> None:
        """Add the complete blocks of these tokens, which have been computed."""
        data = _to_bytes(tokens)
        end = len(data) - len(data) % self._block_bytes
        if not end:
            return
        root = self._roots.setdefault(salt, _Node(b"", None, salt))
        path, matched = self._walk(root, data)
        if end > matched:
            path.append(self._grow(path[-1] if path else root, data[matched:end]))
        self._touch(path)
        while self.blocks > self._capacity:
            self._evict()

    def _walk(self, root: _Node, data: bytes) -> tuple[list[_Node], int]:
        """Return the cached nodes on the path of `data` and their total bytes.

        The last node is split where `data` diverges from it.
        """
        path: list[_Node] = []
        node, at = root, 0
        while child := node.children.get(data[at : at + self._block_bytes]):
            if not data.startswith(child.run, at):
                child = self._split(child, self._common(child.run, data, at))
            at += len(child.run)
            path.append(child)
            node = child
        return path, at

    def _common(self, run: bytes, data: bytes, at: int) -> int:
        """Return the bytes of complete blocks that a run shares with data: some, but not all."""
        low, high = 1, len(run) // self._block_bytes
        while high - low > 1:
            middle = (low + high) // 2
            if data.startswith(run[: middle * self._block_bytes], at):
                low = middle
            else:
                high = middle
        return low * self._block_bytes

    def _split(self, node: _Node, at: int) -> _Node:
        """Split a run in two and return the upper part.

        The lower part retains its eviction order.
        """
        assert node.parent is not None
        upper = _Node(node.run[:at], node.parent)
        node.parent.children[node.run[: self._block_bytes]] = upper
        node.run, node.parent = node.run[at:], upper
        upper.children[node.run[: self._block_bytes]] = node
        self._eviction_order[upper] = None
        return upper

    def _grow(self, node: _Node, run: bytes) -> _Node:
        child = node.children[run[: self._block_bytes]] = _Node(run, node)
        self._eviction_order[child] = None
        self.blocks += len(run) // self._block_bytes
        return child

    def _touch(self, path: list[_Node]) -> None:
        for node in reversed(path):
            self._eviction_order.move_to_end(node)

    def _evict(self) -> None:
        """Remove the excess blocks from the end of the least recently used run."""
        leaf = next(iter(self._eviction_order))
        blocks = len(leaf.run) // self._block_bytes
        evicted = min(blocks, self.blocks - self._capacity)
        self.blocks -= evicted
        if evicted < blocks:
            leaf.run = leaf.run[: (blocks - evicted) * self._block_bytes]
            return
        parent = leaf.parent
        assert parent is not None
        del self._eviction_order[leaf], parent.children[leaf.run[: self._block_bytes]]
        if parent.parent is None and not parent.children:
            del self._roots[parent.salt]


def _to_bytes(tokens: "array[int]") -> bytes:
    return (tokens if tokens.typecode == ID_TYPECODE else array(ID_TYPECODE, tokens)).tobytes()
