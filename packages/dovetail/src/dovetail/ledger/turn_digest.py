"""Digests of the visible part of a turn, and the hash chain over a history.

The digest of an assistant turn ignores differences in form, because clients rewrite what the model
generated: see `DIGEST_IGNORES`. The digest of any other turn covers its exact text and everything
else that a template can show. Clients rewrite ids, so a result is identified by the position of its
call.
"""

import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any, NamedTuple

from dovetail.ledger.equivalence import FormDifference, normalize_text
from dovetail.ledger.store import make_call_key
from dovetail.storage.lru import LruCache
from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    OutputBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    Turn,
)

DIGEST_BYTES = 16
# Part of every digest: chains over digests with other rules must not match.
_DIGEST_VERSION = "2"

DIGEST_IGNORES = frozenset(
    {
        FormDifference.REASONING,
        FormDifference.TEXT_SPACE,
        FormDifference.TEXT_BLOCKS,
        FormDifference.PLACEHOLDER,
        FormDifference.ORDER,
        FormDifference.CALL_IDS,
        FormDifference.JSON_SPELLING,
        FormDifference.NUMBERS,
    }
)
"""The differences in form that do not change the digest of an assistant turn.

White space at the end of arguments that are not JSON does not change it either. Turns that differ
in another form are found by the turns before them and then compared.
"""


class TurnDigest(NamedTuple):
    """The digest of a turn, and its handles, which may identify an entry.

    `result_ids`: the call ids of the results in the turn. The digest of the turn alone does not
    cover them, see `HistoryDigester`.
    `copy_digest`: distinguishes copies with the same digest by their handles and reasoning.
    `chars`: the number of characters of the turn.
    `changes_tools`: whether the turn makes a tool available or withdraws it.
    `has_media`: whether the turn has images or documents.
    """

    digest: bytes
    seals: tuple[str, ...] = ()
    call_ids: tuple[str, ...] = ()
    copy_digest: bytes = b""
    chars: int = 0
    result_ids: tuple[str, ...] = ()
    changes_tools: bool = False
    has_media: bool = False


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


class HistoryDigester:
    """Computes the digests of consecutive turns, with the calls that their results refer to.

    A result refers to a call of the last turn with calls, by its position. A prompt shows a result
    without a call as user text, whatever its id is.
    """

    __slots__ = ("_cache", "_call_positions", "_turns_before")

    def __init__(self, cache: TurnDigestCache, turns_before: Sequence[Turn] = ()) -> None:
        self._cache = cache
        self._turns_before = turns_before
        self._call_positions: dict[str, int] | None = None

    def add(self, turn: Turn) -> TurnDigest:
        """Return the digest of the next turn."""
        found = self._cache.get(turn)
        if found.call_ids:
            self._call_positions = _number_calls(found.call_ids)
        if not found.result_ids:
            return found
        if self._call_positions is None:  # not in advance: chats without tools need no search
            self._call_positions = _number_calls(self._last_call_ids())
        positions = (self._call_positions.get(make_call_key(id)) for id in found.result_ids)
        return found._replace(digest=compute_digest(found.digest, *map(str, positions)))

    def _last_call_ids(self) -> tuple[str, ...]:
        """Return the ids of the last turn with calls before the first turn that was added."""
        assistant = (turn for turn in reversed(self._turns_before) if turn.role == "assistant")
        return next(filter(None, (self._cache.get(turn).call_ids for turn in assistant)), ())


def _number_calls(call_ids: Iterable[str]) -> dict[str, int]:
    return {make_call_key(id): at for at, id in enumerate(call_ids)}


def digest_history(turns: Iterable[Turn]) -> tuple[bytes, ...]:
    """Compute the digests of the turns of a complete history."""
    digester = HistoryDigester(TurnDigestCache())
    return tuple(digester.add(turn).digest for turn in turns)


def digest_turn(turn: Turn) -> TurnDigest:
    """Compute the digest of a turn and collect its handles."""
    if turn.role != "assistant":
        # Messages for a template have no role `developer`.
        role = "system" if turn.role == "developer" else turn.role
        return TurnDigest(
            compute_digest(_DIGEST_VERSION, role, *_content_parts(turn.blocks)),
            chars=_count_chars(turn.blocks),
            result_ids=tuple(b.call_id for b in turn.blocks if isinstance(b, ToolResultBlock)),
            changes_tools=changes_tools(turn),
            has_media=has_media(turn.blocks),
        )
    texts = [block.text for block in turn.blocks if isinstance(block, TextBlock)]
    calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
    reasoning = [block for block in turn.blocks if isinstance(block, ReasoningBlock)]
    seals = tuple(block.seal for block in reasoning if block.seal)
    call_ids = tuple(call.id for call in calls)
    return TurnDigest(
        compute_digest(
            _DIGEST_VERSION,
            "assistant",
            normalize_text(texts),
            *_call_parts(calls),
            *_foreign_parts(turn.blocks),
        ),
        seals,
        call_ids,
        compute_digest(*seals, "", *call_ids, "", *(block.text for block in reasoning)),
        _count_chars(turn.blocks),
        has_media=has_media(turn.blocks),
    )


def changes_tools(turn: Turn) -> bool:
    """Return whether a turn refers to a tool or removes one."""
    return turn.role != "assistant" and any(map(_changes_tools, turn.blocks))


def _changes_tools(block: Block) -> bool:
    if isinstance(block, ToolResultBlock):
        return any(isinstance(b, ToolReferenceBlock | ToolRemovalBlock) for b in block.blocks)
    return isinstance(block, ToolReferenceBlock | ToolRemovalBlock)


def has_media(blocks: Iterable[Block]) -> bool:
    """Return whether blocks contain an image or a document."""
    return any(
        has_media(block.blocks)
        if isinstance(block, ToolResultBlock)
        else isinstance(block, ImageBlock | DocumentBlock)
        for block in blocks
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
        parts += [call.namespace or "", call.name, "custom" if call.custom else "", shown]
    return parts


def _foreign_parts(blocks: Iterable[Block]) -> list[bytes]:
    """Return one part for the blocks of an assistant turn that no model generates, if any."""
    foreign = [block for block in blocks if not isinstance(block, OutputBlock)]
    return [compute_digest(*_content_parts(foreign))] if foreign else []


def _content_parts(blocks: Iterable[Block]) -> list[str | bytes]:
    """Return the parts of a content. A template sees consecutive texts as lines of one text."""
    parts: list[str | bytes] = []
    for is_text, group in groupby(blocks, key=_is_text):
        if is_text:
            text = "\n".join(
                block.text for block in group if isinstance(block, TextBlock) and block.text
            )
            parts += ["text", text] if text else []
        else:
            for block in group:
                parts += _block_parts(block)
    return parts


def _is_text(block: Block) -> bool:
    return isinstance(block, TextBlock)


def _block_parts(block: Block) -> list[str | bytes]:
    """Return the parts of a block other than text. Images and files are covered by their data."""
    match block:
        case ToolResultBlock(blocks=inner, is_error=failed):
            return ["result", "failed" if failed else "", compute_digest(*_content_parts(inner))]
        case ImageBlock(media_type=kind, data=data, url=url):
            return ["image", kind, data or "", url or ""]
        case DocumentBlock(media_type=kind, title=title, data=data, url=url, text=text):
            # A text hides the media type, and a prompt shows that of a document without text.
            shown = [kind] if text is None else []
            return ["document", title or "", data or "", url or "", text or "", *shown]
        case ToolReferenceBlock(name=name, namespace=namespace):
            # The definition is not covered: the model reads the one that was recorded first.
            return ["tool_reference", namespace or "", name]
        case _:
            return ["other", repr(block)]


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
