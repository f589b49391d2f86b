"""A paged prefix cache as engines have them, simulated: which blocks of a prompt are known.

A block is 16 tokens that follow one exact prefix. Blocks are kept until there are more than the
capacity; then the one not used for longest goes, the deeper first of those used together, so that
what is left is always prefixes.

Blocks that were only ever used together are one node, a run of bytes: a look-up compares memory and
takes as many Python steps as there are forks and turns on its way, not blocks or tokens.
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

ID_TYPECODE = "I"
ID_SIZE_BYTES = array(ID_TYPECODE).itemsize


@dataclass(eq=False, slots=True)
class _Node:
    """A run of blocks behind its parent's. A root has no parent and no run, but a salt."""

    run: bytes
    parent: "_Node | None"
    salt: str | None = None
    children: "dict[bytes, _Node]" = field(default_factory=dict)


class PrefixCache:
    """Known blocks, each salt's apart."""

    def __init__(self, capacity: int, block_size: int = 16) -> None:
        self._block_size = block_size
        self._block_bytes = block_size * ID_SIZE_BYTES
        self._capacity = capacity
        self._roots: dict[str | None, _Node] = {}
        # Every node but the roots, the one to go next first: a child stands before its parent.
        self._eviction_order: OrderedDict[_Node, None] = OrderedDict()
        self.blocks = 0

    @property
    def usage(self) -> float:
        """How full it is, from 0 to 1."""
        return self.blocks / self._capacity if self._capacity else 0.0

    def look_up(self, prompt: "array[int]", salt: str | None = None) -> int:
        """How many tokens of a prompt need no prefill: whole blocks, never the whole prompt."""
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
        """These tokens have been computed: their whole blocks are known from now on."""
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
        """The known nodes on the way, the last one cut where data leaves it, and their bytes."""
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
        """The bytes of whole blocks that a run shares with data: some, and not all."""
        low, high = 1, len(run) // self._block_bytes
        while high - low > 1:
            middle = (low + high) // 2
            if data.startswith(run[: middle * self._block_bytes], at):
                low = middle
            else:
                high = middle
        return low * self._block_bytes

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a run in two and give the upper part. The lower one keeps its place in the order."""
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
        """Take what is too much from the end of the run that was not used for longest."""
        leaf = next(iter(self._eviction_order))
        blocks = len(leaf.run) // self._block_bytes
        gone = min(blocks, self.blocks - self._capacity)
        self.blocks -= gone
        if gone < blocks:
            leaf.run = leaf.run[: (blocks - gone) * self._block_bytes]
            return
        parent = leaf.parent
        assert parent is not None
        del self._eviction_order[leaf], parent.children[leaf.run[: self._block_bytes]]
        if parent.parent is None and not parent.children:
            del self._roots[parent.salt]


def _to_bytes(tokens: "array[int]") -> bytes:
    return (tokens if tokens.typecode == ID_TYPECODE else array(ID_TYPECODE, tokens)).tobytes()
