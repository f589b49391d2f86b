"""Skip decoding the part of a request body that the session has sent before.

The next request of an agent starts with exactly the bytes of its last one, up to the end of the
history in it. The structure of these bytes is known: they open the history and contain complete
items. Those items are removed, and the remainder is decoded as a body of its own.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

MIN_BODY_BYTES = 1 << 14  # smaller bodies are decoded in full
_ITEM_OVERHEAD_BYTES = 500  # per decoded item, in addition to its content
_MAX_PREFIXES_PER_SESSION = 8  # one for the agent and one for each of its sub-agents

_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_FIELD = re.compile(rb'[ \t\r\n]*[{,][ \t\r\n]*"([^"\\]*)"[ \t\r\n]*:[ \t\r\n]*')
_END = re.compile(rb"[ \t\r\n]*\}[ \t\r\n]*")
_NEXT = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_MORE = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*(?=\{)")


class HistoryKey(NamedTuple):
    """The key of a history: the field that contains it, the decoder of its items, the session."""

    field: str
    kind: str
    session: str | None = None


class BodyPrefix(NamedTuple):
    """The items at the start of a body: where they begin, where each ends, what each decoded to.

    All items are objects: the end of an object does not depend on what follows it.
    """

    body: bytes
    opening: int
    ends: Sequence[int]
    decoded: Sequence[Any]

    def count_shared_items(self, body: bytes) -> int:
        """Count the items that the other body starts with as well.

        Bytes already found equal are not compared again: the total is about one pass over the body.
        """
        mine, ends = memoryview(self.body), self.ends
        same, upper, at = 0, len(ends), 0
        while same < upper:
            middle = (same + upper + 1) // 2
            if body.startswith(mine[at : ends[middle - 1]], at):
                same, at = middle, ends[middle - 1]
            else:
                upper = middle - 1
        return same


class BodyRemainder(NamedTuple):
    """A body without the items it shares with an earlier body, and the offset of the next item."""

    fields: dict[str, Raw]
    prefix: BodyPrefix
    known_items: int
    at: int

    @property
    def known_decoded(self) -> Sequence[Any]:
        """The decoded values of the removed items."""
        return self.prefix.decoded[: self.known_items]


class BodyPrefixCache:
    """The latest bodies of each session, in two generations as in `DecodeCache`."""

    __slots__ = ("_generation_bytes", "_min_body_bytes", "_old", "_young", "_young_bytes")

    def __init__(self, max_bytes: int, *, min_body_bytes: int = MIN_BODY_BYTES) -> None:
        self._min_body_bytes = min_body_bytes
        self._generation_bytes = max_bytes // 2
        self._young_bytes = 0
        self._young: dict[HistoryKey, tuple[BodyPrefix, ...]] = {}
        self._old: dict[HistoryKey, tuple[BodyPrefix, ...]] = {}

    def match(self, key: HistoryKey, body: bytes) -> BodyRemainder | None:
        """Split a body into its known prefix and the remainder; None if no prefix is known."""
        prefixes = self._prefixes(key) if len(body) >= self._min_body_bytes else ()
        if not prefixes:
            return None
        shared, nearest = max(
            ((one.count_shared_items(body), one) for one in prefixes), key=itemgetter(0)
        )
        for count in range(shared, max(shared - 2, 0), -1):  # at least one item remains
            more = _MORE.match(body, nearest.ends[count - 1])
            if more is not None:
                return _build_remainder(key, body, nearest, count, more.end())
        return None

    def put(
        self,
        key: HistoryKey,
        body: bytes,
        remainder: BodyRemainder | None,
        items: Sequence[Raw],
        decoded: Sequence[Any],
    ) -> None:
        """Store a body: `items` are the remaining items, `decoded` are the values of all items."""
        if len(body) < self._min_body_bytes or len(body) > self._generation_bytes:
            return
        if remainder is not None:
            start, at = remainder.prefix.opening, remainder.at
            ends = list(remainder.prefix.ends[: remainder.known_items])
        else:
            found = _items_start(body, _decode_fields(body), key.field)
            if found is None:
                return
            start, at, ends = found, found, list[int]()
        ends += _item_ends(body, at, items)
        if ends:
            self._add(key, BodyPrefix(body, start, ends, decoded[: len(ends)]), remainder)

    def _prefixes(self, key: HistoryKey) -> tuple[BodyPrefix, ...]:
        return self._young.get(key) or self._old.get(key, ())

    def _add(self, key: HistoryKey, new: BodyPrefix, remainder: BodyRemainder | None) -> None:
        """Store a prefix in place of the one that it continues."""
        known = self._prefixes(key)
        if remainder is not None and 2 * remainder.known_items >= len(remainder.prefix.ends):
            known = tuple(one for one in known if one is not remainder.prefix)
        others = (one for one in known if one.body != new.body)
        prefixes = _fit(self._generation_bytes, (new, *others))
        if not prefixes:
            return
        more = _size_bytes(prefixes) - _size_bytes(self._young.get(key, ()))
        if self._young_bytes + more > self._generation_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
            more = _size_bytes(prefixes)
        self._young_bytes += more
        self._young[key] = prefixes


def _fit(max_bytes: int, prefixes: tuple[BodyPrefix, ...]) -> tuple[BodyPrefix, ...]:
    """Return the newest prefixes of a session that fit the limit."""
    prefixes = prefixes[:_MAX_PREFIXES_PER_SESSION]
    while _size_bytes(prefixes) > max_bytes:
        prefixes = prefixes[:-1]
    return prefixes


def _size_bytes(prefixes: Iterable[BodyPrefix]) -> int:
    """Estimate their size in memory: their bytes and the decoded items."""
    return sum(len(one.body) + _ITEM_OVERHEAD_BYTES * len(one.ends) for one in prefixes)


def _build_remainder(
    key: HistoryKey, body: bytes, nearest: BodyPrefix, count: int, at: int
) -> BodyRemainder | None:
    shorter = body[: nearest.opening] + body[at:]
    fields = _decode_fields(shorter)
    if _items_start(shorter, fields, key.field) != nearest.opening:
        return None
    return BodyRemainder(fields, nearest, count, at)


def _decode_fields(body: bytes) -> dict[str, Raw]:
    """Split an object into fields; empty for malformed JSON, which the full decoding reports."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _item_ends(body: bytes, at: int, items: Sequence[Raw]) -> list[int]:
    """Return where the items at this position end, up to the first one that is not an object."""
    found: list[int] = []
    for raw in items:
        space = _NEXT.match(body, at)
        at = space.end() if space is not None else at
        if not body.startswith(b"{", at) or not body.startswith(raw, at):
            break
        at += len(raw)
        found.append(at)
    return found


def _items_start(body: bytes, fields: Mapping[str, Raw], name: str) -> int | None:
    """Return where a field's items begin; None if a field is repeated or other bytes are found."""
    at, found = 0, None
    for field, raw in fields.items():
        head = _FIELD.match(body, at)
        if head is None or head[1] != field.encode() or not body.startswith(raw, head.end()):
            return None
        at = head.end() + len(raw)
        if field == name and body.startswith(b"[", head.end()):
            found = head.end() + 1
    return found if _END.fullmatch(body, at) else None
