"""What a client can see of a turn, as a digest; and the hash chain over a history.

Left out on purpose: thoughts (clients drop them), ids (clients rewrite them), the order of text
and calls within a turn (Claude Code moves calls behind text), the order of keys and the spelling
of numbers in arguments. What is left is what the turn means.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

SIZE = 16  # bytes of a digest


class Seen(NamedTuple):
    """A turn's digest, and what in it may lead back to an entry.

    `copy` tells apart copies that look the same: by their handles and thoughts. `size` are the
    characters that the turn holds.
    """

    digest: bytes
    seals: tuple[str, ...] = ()
    call_ids: tuple[str, ...] = ()
    copy: bytes = b""
    size: int = 0


class Digests:
    """Digests of turns, remembered by identity: the decoder hands out known turns again.

    What is remembered is held: at most so many turns, of so many characters in all.
    """

    __slots__ = ("_chars", "_known", "_most", "_most_chars")

    def __init__(self, most: int = 65536, most_chars: int = 64 << 20) -> None:
        self._known: OrderedDict[int, tuple[Turn, Seen]] = OrderedDict()
        self._most = most
        self._most_chars = most_chars
        self._chars = 0

    def of(self, turn: Turn) -> Seen:
        known = self._known.get(id(turn))
        if known is not None and known[0] is turn:
            return known[1]
        seen = see(turn)
        if known is not None:
            self._chars -= known[1].size
        self._known[id(turn)] = (turn, seen)
        self._chars += seen.size
        while len(self._known) > self._most or self._chars > self._most_chars:
            self._chars -= self._known.popitem(last=False)[1][1].size
        return seen


def see(turn: Turn) -> Seen:
    """The digest of a turn and its handles."""
    if turn.role != "assistant":
        role = "system" if turn.role == "developer" else turn.role
        return Seen(digest(role, *_parts(turn.blocks)), size=_size(turn.blocks))
    texts = [block.text for block in turn.blocks if isinstance(block, TextBlock)]
    calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
    thoughts = [block for block in turn.blocks if isinstance(block, ReasoningBlock)]
    seals = tuple(block.seal for block in thoughts if block.seal)
    call_ids = tuple(call.id for call in calls)
    return Seen(
        digest("assistant", "".join(texts).strip(), *_calls(calls)),
        seals,
        call_ids,
        digest(*seals, "", *call_ids, "", *(block.text for block in thoughts)),
        _size(turn.blocks),
    )


def digest(*parts: str | bytes) -> bytes:
    """A digest of parts, each with its length: no two lists of parts run together."""
    hashed = blake2b(digest_size=SIZE)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "little"))
        hashed.update(data)
    return hashed.digest()


def link(key: bytes, before: bytes, seen: bytes) -> bytes:
    """The chain with one more turn in it. The key is the tenant's own."""
    return blake2b(before + seen, digest_size=SIZE, key=key).digest()


def canonical(arguments: str) -> str:
    """Arguments in one spelling: keys in order, whole numbers whole, nothing lost that means."""
    try:
        value = _plain(json.loads(arguments or "{}"))
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return arguments.rstrip()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _calls(calls: Iterable[ToolCallBlock]) -> list[str]:
    parts: list[str] = []
    for call in calls:
        shown = call.arguments.rstrip() if call.custom else canonical(call.arguments)
        parts += [call.namespace or "", call.name, shown]
    return parts


def _parts(blocks: Iterable[Block]) -> list[str | bytes]:
    parts: list[str | bytes] = []
    for block in blocks:
        match block:
            case TextBlock(text=text):
                parts += ["text", text.strip()]
            case ToolResultBlock(blocks=inner, is_error=failed):
                parts += ["result", "failed" if failed else "", digest(*_parts(inner))]
            case ImageBlock(media_type=kind, data=data, url=url):
                parts += ["image", kind, data or "", url or ""]
            case DocumentBlock(title=title, data=data, url=url, text=text):
                parts += ["document", title or "", data or "", url or "", text or ""]
            case _:
                parts += ["other", repr(block)]
    return parts


def _size(blocks: Iterable[Block]) -> int:
    """Characters that these blocks hold."""
    total = 0
    for block in blocks:
        match block:
            case TextBlock(text=text):
                total += len(text)
            case ReasoningBlock(text=text, seal=seal):
                total += len(text) + len(seal or "")
            case ToolCallBlock(arguments=text):
                total += len(text)
            case ToolResultBlock(blocks=inner):
                total += _size(inner)
            case ImageBlock(data=data):
                total += len(data or "")
            case DocumentBlock(data=data, text=text):
                total += len(data or "") + len(text or "")
    return total
