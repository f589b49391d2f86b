"""Decode request bodies: accept unknown fields, and report errors with the path of the field."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from dovetail_model import Block, ClientFields, InvalidRequest, Turn
from dovetail_protocols.body_prefixes import BodyRemainder, HistoryKey
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.fields import UnusedFields
from dovetail_protocols.json_depth import MAX_JSON_DEPTH, check_depth, exceeds_depth

T = TypeVar("T")
P = TypeVar("P")

_decode = msgspec.json.Decoder().decode
# Arrays are decoded to the bytes of their items, everything else to values, in one pass.
_Value = str | list[Raw] | dict[str, Any] | int | float | bool | None
_value = msgspec.json.Decoder(_Value).decode
_split = msgspec.json.Decoder(dict[str, _Value]).decode
_MAX_REPAIRED_BYTES = 8 << 20  # larger bodies are too expensive to read again
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_VALIDATION_PATH = re.compile(r"^(.*?)(?: - at `(.*)`)?$", re.DOTALL)


class RequestBody:
    """A request body as a JSON object.

    For the history and the arrays named in `raw_fields`, `fields` contains the items as bytes.
    They are decoded one by one, unless they are cached. The part of the history that the session
    has sent before is not in `fields`.
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
            name: self._field(name, value, as_bytes) for name, value in self._split().items()
        }

    def client_fields(
        self, api: str, unused: UnusedFields, tools: Iterable[tuple[str, Any]] = ()
    ) -> ClientFields:
        """Return what an upstream of the same API receives, without the history and the tools."""
        history = self._history.field if self._history is not None else ""
        fields = {
            name: value
            for name, value in self.fields.items()
            if name != history and name not in ("system", "tools")
        }
        return ClientFields(api, fields, tuple(tools), unused.reported, unused.rejected)

    def value(self, raw: Raw, path: str) -> Any:
        """Decode an item to its JSON value. Errors name it by its path."""
        try:
            found = _decode(raw)
        except _NOT_JSON as error:
            found = self._decode_repaired(bytes(raw), error)
        check_depth(found, path)
        return found

    def values(self, items: Iterable[Raw], path: str) -> list[Any]:
        """Decode the items of the array at this path."""
        return [self.value(raw, f"{path}[{at}]") for at, raw in enumerate(items)]

    def _field(self, name: str, value: Any, as_bytes: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return value if name in as_bytes else self.values(value, name)
        check_depth(value, name)
        return value

    def get_or_decode(self, kind: str, source: str | Sequence[Raw], decode: Callable[[], T]) -> T:
        """Like `DecodeCache.get_or_decode`; without a cache it only decodes."""
        return decode() if self._cache is None else self._cache.get_or_decode(kind, source, decode)

    def decode_history(
        self, items: Sequence[Raw], decode: Callable[[int, Raw], T], *, indexed: bool
    ) -> list[T]:
        """Decode the complete history; `items` are those in `fields`."""
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
        except _NOT_JSON as error:
            if len(self._bytes) > _MAX_REPAIRED_BYTES:
                raise _not_json(error, self._bytes) from error
            self._remainder = None  # report the error with its position in the full body
            return _split(ensure_json_object(self._bytes))

    def _decode_repaired(self, item: bytes, error: Exception) -> Any:
        try:
            return _decode(_repair_json(item))
        except (ValueError, RecursionError):
            ensure_json_object(self._bytes)  # raises with the position in the body
            raise _not_json(error, item) from error


def convert(value: object, kind: type[T], path: str = "") -> T:
    """Convert to a wire type. An error names the field by its path: `messages[3].content`."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        found = _VALIDATION_PATH.match(str(error))
        reason, inner = (found[1], found[2] or "") if found else (str(error), "")
        where = path + inner.removeprefix("$")
        where = where.removeprefix(".")
        text = f"{where}: {reason}" if where else reason
        raise InvalidRequest(text, param=where or None) from error


def ensure_json_object(body: bytes) -> bytes:
    """Return the body as valid JSON, repaired if necessary.

    JavaScript clients truncate strings in the middle of an emoji and send the remaining surrogate
    as an escape, which strict JSON decoders reject. The string stays in the history, so rejecting
    it would end the session. Therefore it is repaired.
    """
    try:
        value, sound = _decode(body), body
    except _NOT_JSON as error:
        try:
            sound = _repair_json(body)
            value = _decode(sound)
        except (ValueError, RecursionError):
            raise _not_json(error, body) from error
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return sound


def _repair_json(text: bytes) -> bytes:
    return json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")


def _not_json(error: Exception, text: bytes) -> InvalidRequest:
    if isinstance(error, RecursionError) or (
        len(text) <= _MAX_REPAIRED_BYTES and exceeds_depth(text, MAX_JSON_DEPTH)
    ):
        return InvalidRequest(
            f"The request body must not be nested more than {MAX_JSON_DEPTH} levels deep."
        )
    return InvalidRequest(f"The request body is not valid JSON: {error}")


def join_turns(body: RequestBody, pieces: Sequence[Turn]) -> Turn:
    """Join pieces to one turn. The same pieces always return the identical turn."""
    if len(pieces) == 1:
        return pieces[0]
    return body.combine("turn", tuple(pieces), _concatenate_turns)


def _concatenate_turns(pieces: tuple[Turn, ...]) -> Turn:
    blocks: list[Block] = []
    for piece in pieces:
        blocks += piece.blocks
    return Turn(pieces[0].role, tuple(blocks))
