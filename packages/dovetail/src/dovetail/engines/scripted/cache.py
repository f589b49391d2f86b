"""A paged prefix cache as engines have them, simulated: which blocks of a prompt are known.

A block is 16 tokens that follow one exact prefix. Blocks are kept until there are more than the
capacity; then the one not used for longest goes, the deeper first of those used together, so that
what is left is always prefixes.

Blocks that were only ever used together are one node, a run of bytes: a look-up compares memory and
takes as many Python steps as there are forks and turns on its way, not blocks or tokens.
"""

from array import array
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

IDS = "I"
ID_BYTES = array(IDS).itemsize


@dataclass(eq=False, slots=True)
class _Node:
    """A run of blocks behind its parent's. `used` is the tick at which all of them were used."""

    run: bytes
    parent: "_Node | None"
    used: int
    children: "dict[bytes, _Node]" = field(default_factory=dict)


class PrefixCache:
    """Known blocks, each salt's apart."""

    def __init__(self, capacity: int, block_size: int = 16) -> None:
        self._block = block_size
        self._width = block_size * ID_BYTES
        self._capacity = capacity
        self._roots: dict[str | None, _Node] = {}
        self._tick = 0
        self._order = count()
        self._leaves: list[tuple[int, int, _Node]] = []  # a heap; entries may be out of date
        self.blocks = 0

    def look_up(self, prompt: "array[int]", salt: str | None = None) -> int:
        """How many tokens of a prompt need no prefill: whole blocks, never the whole prompt."""
        self._tick += 1
        _, matched = self._walk(_bytes(prompt), salt)
        most = (len(prompt) - 1) // self._block if prompt else 0
        return min(matched // self._width, most) * self._block

    def add(self, tokens: "array[int]", salt: str | None = None) -> None:
        """These tokens have been computed: their whole blocks are known from now on."""
        self._tick += 1
        data = _bytes(tokens)
        node, matched = self._walk(data, salt)
        end = len(data) - len(data) % self._width
        if end > matched:
            self._grow(node, data[matched:end])
        while self.blocks > self._capacity:
            self._evict()

    def _walk(self, data: bytes, salt: str | None) -> tuple[_Node, int]:
        """The deepest node on the way, a fork made if need be, and the bytes up to its end."""
        node = self._roots.get(salt)
        if node is None:
            node = self._roots[salt] = _Node(b"", None, self._tick)
        at = 0
        while True:
            child = node.children.get(data[at : at + self._width])
            if child is None:
                return node, at
            if not data.startswith(child.run, at):
                self._split(child, self._common(child.run, data, at))
                child = node.children[data[at : at + self._width]]
            child.used = self._tick
            if not child.children:
                self._remember(child)
            at += len(child.run)
            node = child

    def _common(self, run: bytes, data: bytes, at: int) -> int:
        """How many bytes of whole blocks two runs share: at least one block, not all of the run."""
        low, high = 1, len(run) // self._width
        while high - low > 1:
            middle = (low + high) // 2
            if data.startswith(run[: middle * self._width], at):
                low = middle
            else:
                high = middle
        return low * self._width

    def _split(self, node: _Node, at: int) -> None:
        """Cut a run in two. The lower part stays this node: what refers to it stays true."""
        assert node.parent is not None
        upper = _Node(node.run[:at], node.parent, node.used)
        node.parent.children[node.run[: self._width]] = upper
        node.run, node.parent = node.run[at:], upper
        upper.children[node.run[: self._width]] = node

    def _grow(self, node: _Node, run: bytes) -> None:
        child = _Node(run, node, self._tick)
        node.children[run[: self._width]] = child
        self.blocks += len(run) // self._width
        self._remember(child)

    def _remember(self, leaf: _Node) -> None:
        heappush(self._leaves, (leaf.used, next(self._order), leaf))

    def _evict(self) -> None:
        """Take from the end of the leaf that was not used for longest."""
        used, _, leaf = heappop(self._leaves)
        if leaf.parent is None or leaf.children or leaf.used != used:
            return
        kept = max(0, len(leaf.run) // self._width - (self.blocks - self._capacity))
        self.blocks -= len(leaf.run) // self._width - kept
        if kept:
            leaf.run = leaf.run[: kept * self._width]
            self._remember(leaf)
            return
        parent, leaf.parent = leaf.parent, None
        del parent.children[leaf.run[: self._width]]
        if parent.parent is not None and not parent.children:
            self._remember(parent)
        elif not parent.children:
            self._forget_root(parent)

    def _forget_root(self, root: _Node) -> None:
        self._roots = {salt: node for salt, node in self._roots.items() if node is not root}


def _bytes(tokens: "array[int]") -> bytes:
    return (tokens if tokens.typecode == IDS else array(IDS, tokens)).tobytes()
