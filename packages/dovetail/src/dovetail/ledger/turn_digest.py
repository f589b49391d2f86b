"""Digests of the visible part of a turn, and the hash chain over a history.

A digest deliberately ignores reasoning (clients drop it), ids (clients rewrite them), the order of
text and calls within a turn (Claude Code moves calls after text), the order of keys and the
spelling of numbers in arguments.
"""

import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from dovetail.storage.lru import LruCache
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

DIGEST_BYTES = 16


class TurnDigest(NamedTuple):
    """The digest of a turn, and its handles, which may identify an entry.

    `copy_digest`: distinguishes copies with the same digest by their handles and reasoning.
    `chars`: the number of characters of the turn.
    """

    digest: bytes
    seals: tuple[str, ...] = ()
    call_ids: tuple[str, ...] = ()
    copy_digest: bytes = b""
    chars: int = 0


class TurnDigestCache:
    """Caches digests of turns by object identity: the decoder returns the same objects again.

    The cache holds references to the turns, so it is bounded in turns and in characters.
    """

    __slots__ = ("_digests",)

    def __init__(self, max_turns: int = 65536, max_chars: int = 64 << 20) -> None:
        self._digests: LruCache[int, tuple[Turn, TurnDigest]] = LruCache(
            max_turns, max_size=max_chars, size_of=_cached_chars
        )

    def get(self, turn: Turn) -> TurnDigest:
        known = self._digests.peek(id(turn))
        if known is not None and known[0] is turn:
            return known[1]
        digest = digest_turn(turn)
        self._digests.put(id(turn), (turn, digest))
        return digest


def _cached_chars(known: tuple[Turn, TurnDigest]) -> int:
    return known[1].chars


def digest_turn(turn: Turn) -> TurnDigest:
    """Compute the digest of a turn and collect its handles."""
    if turn.role != "assistant":
        role = "system" if turn.role == "developer" else turn.role
        return TurnDigest(
            compute_digest(role, *_block_parts(turn.blocks)), chars=_count_chars(turn.blocks)
        )
    texts = [block.text for block in turn.blocks if isinstance(block, TextBlock)]
    calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
    reasoning = [block for block in turn.blocks if isinstance(block, ReasoningBlock)]
    seals = tuple(block.seal for block in reasoning if block.seal)
    call_ids = tuple(call.id for call in calls)
    return TurnDigest(
        compute_digest("assistant", "".join(texts).strip(), *_call_parts(calls)),
        seals,
        call_ids,
        compute_digest(*seals, "", *call_ids, "", *(block.text for block in reasoning)),
        _count_chars(turn.blocks),
    )


def compute_digest(*parts: str | bytes) -> bytes:
    """Hash parts, each with its length, so that different lists never give the same input."""
    hasher = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.digest()


def extend_chain(key: bytes, chain: bytes, digest: bytes) -> bytes:
    """Extend a hash chain by one turn. The key belongs to the tenant."""
    return blake2b(chain + digest, digest_size=DIGEST_BYTES, key=key).digest()


def canonicalize_arguments(arguments: str) -> str:
    """Normalize arguments: sorted keys, and integers for floats without a fraction."""
    try:
        value = _canonicalize_value(json.loads(arguments or "{}"))
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return arguments.rstrip()


def _canonicalize_value(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if isinstance(value, dict):
        return {key: _canonicalize_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonicalize_value(item) for item in value]
    return value


def _call_parts(calls: Iterable[ToolCallBlock]) -> list[str]:
    parts: list[str] = []
    for call in calls:
        shown = call.arguments.rstrip() if call.custom else canonicalize_arguments(call.arguments)
        parts += [call.namespace or "", call.name, shown]
    return parts


def _block_parts(blocks: Iterable[Block]) -> list[str | bytes]:
    parts: list[str | bytes] = []
    for block in blocks:
        match block:
            case TextBlock(text=text):
                parts += ["text", text.strip()]
            case ToolResultBlock(blocks=inner, is_error=failed):
                parts += [
                    "result",
                    "failed" if failed else "",
                    compute_digest(*_block_parts(inner)),
                ]
            case ImageBlock(media_type=kind, data=data, url=url):
                parts += ["image", kind, data or "", url or ""]
            case DocumentBlock(title=title, data=data, url=url, text=text):
                parts += ["document", title or "", data or "", url or "", text or ""]
            case _:
                parts += ["other", repr(block)]
    return parts


def _count_chars(blocks: Iterable[Block]) -> int:
    """Count the characters in blocks."""
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
                total += _count_chars(inner)
            case ImageBlock(data=data):
                total += len(data or "")
            case DocumentBlock(data=data, text=text):
                total += len(data or "") + len(text or "")
    return total
