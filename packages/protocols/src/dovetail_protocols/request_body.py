"""Decode a request body: lenient about unknown fields, exact about the position of an error."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from dovetail_model import Block, InvalidRequest, Turn
from dovetail_protocols.body_prefixes import BodyRemainder, HistoryKey
from dovetail_protocols.decode_cache import DecodeCache

T = TypeVar("T")
P = TypeVar("P")

_decode = msgspec.json.Decoder().decode
# Arrays as the bytes of their items, everything else as values: one pass over the body.
_Value = str | list[Raw] | dict[str, Any] | int | float | bool | None
_value = msgspec.json.Decoder(_Value).decode
_split = msgspec.json.Decoder(dict[str, _Value]).decode
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_VALIDATION_PATH = re.compile(r"^(.*?)(?: - at `(.*)`)?$", re.DOTALL)


class RequestBody:
    """A request body as a JSON object.

    Of the arrays named in `raw_fields`, and of the history, `fields` has the items as bytes. They
    are decoded one by one, and those in the cache not at all: the part of the history that the
    session has sent before is left out of `fields`.
    """

    __slots__ = ("_bytes", "_cache", "_history", "_remainder", "fields")

    def __init__(
        self,
        body: bytes,
        cache: DecodeCache | None = None,
        raw_fields: tuple[str, ...] = (),
        history: HistoryKey | None = None,
    ) -> None:
        self._bytes = body
        self._cache = cache
        self._history = history
        self._remainder: BodyRemainder | None = None
        if cache is not None and history is not None:
            self._remainder = cache.body_prefixes.match(history, body)
        as_bytes = raw_fields if history is None else (*raw_fields, history.field)
        self.fields: dict[str, Any] = {
            name: self.values(value) if isinstance(value, list) and name not in as_bytes else value
            for name, value in self._split().items()
        }

    def value(self, raw: Raw) -> Any:
        """The JSON value of an item."""
        try:
            return _decode(raw)
        except _NOT_JSON as error:
            return self._decode_repaired(bytes(raw), error)

    def values(self, items: Iterable[Raw]) -> list[Any]:
        return [self.value(raw) for raw in items]

    def get_or_decode(self, kind: str, source: str | Sequence[Raw], decode: Callable[[], T]) -> T:
        """`DecodeCache.get_or_decode`; decodes where there is no cache."""
        return decode() if self._cache is None else self._cache.get_or_decode(kind, source, decode)

    def decode_history(
        self, items: Sequence[Raw], decode: Callable[[int, Raw], T], *, indexed: bool
    ) -> list[T]:
        """Decode the whole history, of which `fields` has these items."""
        cache, history, remainder = self._cache, self._history, self._remainder
        if cache is None or history is None:
            return [decode(at, raw) for at, raw in enumerate(items)]
        known: Sequence[T] = remainder.known_decoded if remainder is not None else ()
        new = cache.get_or_decode_each(
            history.kind, items, decode, indexed=indexed, start=len(known)
        )
        found = [*known, *new]
        cache.body_prefixes.put(history, self._bytes, remainder, items, found)
        return found

    def combine(self, kind: str, parts: tuple[P, ...], make: Callable[[tuple[P, ...]], T]) -> T:
        return make(parts) if self._cache is None else self._cache.combine(kind, parts, make)

    def _split(self) -> dict[str, Any]:
        try:
            if self._remainder is not None:
                return {name: _value(raw) for name, raw in self._remainder.fields.items()}
            return _split(self._bytes)
        except _NOT_JSON:
            self._remainder = None  # the fault is worded by its place in the whole body
            return _split(ensure_json_object(self._bytes))

    def _decode_repaired(self, item: bytes, error: Exception) -> Any:
        try:
            return _decode(_repair_json(item))
        except (ValueError, RecursionError):
            ensure_json_object(self._bytes)  # words the fault by its place in the body
            raise _not_json(error) from error


def convert(value: object, kind: type[T], path: str = "") -> T:
    """Convert to a wire type. An error names the field by its path, as `messages[3].content`."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        found = _VALIDATION_PATH.match(str(error))
        reason, inner = (found[1], found[2] or "") if found else (str(error), "")
        where = path + inner.removeprefix("$")
        where = where.removeprefix(".")
        text = f"{where}: {reason}" if where else reason
        raise InvalidRequest(text, param=where or None) from error


def unknown_fields(
    value: dict[str, Any], kind: type[msgspec.Struct], path: str = ""
) -> tuple[str, ...]:
    """The paths of fields that the wire type does not know."""
    known = kind.__struct_encode_fields__
    return tuple(f"{path}{name}" for name in value if name not in known)


def ensure_json_object(body: bytes) -> bytes:
    """The body as valid JSON.

    Clients in JavaScript cut strings in the middle of an emoji and send the half that is left as
    an escape, which no strict reader takes. It stays in the history for good: refused once, the
    session would be lost. So it is mended.
    """
    try:
        value, sound = _decode(body), body
    except _NOT_JSON as error:
        try:
            sound = _repair_json(body)
            value = _decode(sound)
        except (ValueError, RecursionError):
            raise _not_json(error) from error
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return sound


def _repair_json(text: bytes) -> bytes:
    return json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")


def _not_json(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"The request body is not valid JSON: {error}")


def join_turns(body: RequestBody, pieces: Sequence[Turn]) -> Turn:
    """One turn of all the pieces. The same pieces always make the identical turn."""
    if len(pieces) == 1:
        return pieces[0]
    return body.combine("turn", tuple(pieces), _concatenate_turns)


def _concatenate_turns(pieces: tuple[Turn, ...]) -> Turn:
    blocks: list[Block] = []
    for piece in pieces:
        blocks += piece.blocks
    return Turn(pieces[0].role, tuple(blocks))
