"""An entry of the ledger: one assistant turn, and how its prompt follows from the turn before.

Never the whole prompt: an entry holds what was new, and points to the entry it grew from.
"""

import hashlib
import secrets
from array import array
from collections.abc import Iterable
from typing import Literal

import msgspec

TOKEN_ID_TYPECODE = "I"  # the type code of token ids: four bytes each
FINISH_INTERRUPTED = "broken"  # it did not end: the engine failed, or the client went
LOGPROB_TYPECODE = "f"  # the type code of logarithms of probabilities; not a number: not known

_ENTRY_ID_BYTES = 12
_MAX_SESSION_NAME_CHARS = 200  # characters of a session's name; a longer one is kept as its hash


class EntrySpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of the turn: what the model wrote, and what the client was shown of it.

    For a call `shown` is its arguments, `id` the outward id, `own_id` the model's, if it wrote one.
    `tokens` is the number of generated ids, from the turn's start, that end at or before its end.
    """

    kind: Literal["text", "reasoning", "call"]
    raw: str
    shown: str
    tokens: int = 0
    name: str = ""
    id: str = ""
    own_id: str | None = None
    namespace: str | None = None
    custom: bool = False
    complete: bool = True


class LedgerEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A turn. Its prompt is the first `keep` tokens of the parent's whole, then `suffix`.

    An entry's whole is its prompt and what was generated, without the token that ended it.
    `before` and `chain` are the hash chain over the visible messages, without and with this turn;
    `line` is the chain over what those messages were taken for, thoughts and all; `head` is the
    hash of system text, tools and template switches. `opening` is how the prompt ended behind its
    last role marker, where that can be told; `thinking` what was asked about thoughts, as JSON.

    `session` is the one that the client named, else that of the parent, else the id of the line's
    first entry; `agent` is the sub-agent that spoke. `answer` is the number in the id under which
    the client knows the answer. `logprobs` has one number for each generated id, and one more for
    `stop` where that is known; it is empty where the engine told none. `forced` are the ranges of
    generated ids that were put into the model's mouth: the end of a thought that grew too long.
    """

    id: str
    tenant: str
    model: str
    parent: str | None
    keep: int
    suffix: bytes
    generated: bytes
    stop: int | None
    spans: tuple[EntrySpan, ...]
    before: bytes
    chain: bytes
    head: bytes
    finish: str = "stop"  # why it ended, or BROKEN
    created: float = 0.0
    line: bytes = b""
    opening: str | None = None
    thinking: bytes = b""
    session: str = ""
    agent: str = ""
    answer: str = ""
    logprobs: bytes = b""
    forced: tuple[tuple[int, int], ...] = ()

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The outward ids of its calls."""
        return tuple(span.id for span in self.spans if span.kind == "call" and span.id)


def normalize_session_name(given: str) -> str:
    """A client's name for its session as entries hold it: short, and text that can be stored."""
    if len(given) > _MAX_SESSION_NAME_CHARS:
        return "sha256-" + hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()
    return given.encode("utf-8", "replace").decode()


def create_entry_id() -> str:
    """An id that nobody can guess. People type it behind a command: it begins like no option."""
    while (made := secrets.token_urlsafe(_ENTRY_ID_BYTES)).startswith("-"):
        pass
    return made


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as an entry holds them."""
    return array(TOKEN_ID_TYPECODE, ids).tobytes()


def unpack_ids(packed: bytes) -> "array[int]":
    """The token ids of a packed run."""
    ids = array(TOKEN_ID_TYPECODE)
    ids.frombytes(packed)
    return ids


def unpack_logprobs(packed: bytes) -> "array[float]":
    """The numbers of a packed run."""
    values: array[float] = array(LOGPROB_TYPECODE)
    values.frombytes(packed)
    return values
