"""A ledger entry: one assistant turn, and how its prompt follows from the turn before.

An entry never holds the whole prompt: only what was new, and the id of the entry it extends.
"""

import hashlib
import secrets
from array import array
from collections.abc import Iterable
from typing import Literal

import msgspec

TOKEN_ID_TYPECODE = "I"  # the type code of token ids: four bytes each
FINISH_INTERRUPTED = "broken"  # the engine failed, or the client disconnected
LOGPROB_TYPECODE = "f"  # the type code of logprobs; NaN where a logprob is not known

_ENTRY_ID_BYTES = 12
_MAX_SESSION_NAME_CHARS = 200  # a longer session name is stored as its hash


class EntrySpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of a turn: what the model wrote, and what the client was shown of it.

    For a call `shown` is its arguments, `id` the public id, `own_id` the model's, if it wrote one.
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
    """A turn. Its prompt is the first `prefix_tokens` of the parent's token ids, then `suffix`.

    The token ids of an entry are its prompt and what was generated, without the stop token.
    `chain_before` and `chain` are the hash chain over the visible messages, without and with this
    turn; `lineage` is the chain over the entries that those messages were recognized as, reasoning
    included; `head` is the hash of system text, tools and template switches. `opening` is how the
    prompt ended behind its last role marker, where that is known; `thinking` are the request's
    reasoning settings as JSON.

    `session` is the one that the client named, else that of the parent, else the id of the
    branch's first entry; `agent` is the sub-agent that made the request. `response_number` is the
    random part of the response's public id. `logprobs` has one number for each generated id, and
    one more for `stop` where that is known; it is empty where the engine reported none. `forced`
    are the ranges of generated ids that the model did not choose: the end of reasoning that
    exceeded its budget.

    Entries are stored as arrays: the order of the fields is the format, their names are not.
    """

    id: str
    tenant: str
    model: str
    parent: str | None
    prefix_tokens: int
    suffix: bytes
    generated: bytes
    stop: int | None
    spans: tuple[EntrySpan, ...]
    chain_before: bytes
    chain: bytes
    head: bytes
    finish: str = "stop"  # why it ended, or FINISH_INTERRUPTED
    created: float = 0.0
    lineage: bytes = b""
    opening: str | None = None
    thinking: bytes = b""
    session: str = ""
    agent: str = ""
    response_number: str = ""
    logprobs: bytes = b""
    forced: tuple[tuple[int, int], ...] = ()

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The public ids of its calls."""
        return tuple(span.id for span in self.spans if span.kind == "call" and span.id)


def normalize_session_name(name: str) -> str:
    """Shorten a client's session name to what entries hold, and replace what cannot be stored."""
    if len(name) > _MAX_SESSION_NAME_CHARS:
        return "sha256-" + hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
    return name.encode("utf-8", "replace").decode()


def create_entry_id() -> str:
    """Create an unguessable id. It is typed on command lines, so it never starts with a dash."""
    while (entry_id := secrets.token_urlsafe(_ENTRY_ID_BYTES)).startswith("-"):
        pass
    return entry_id


def pack_ids(ids: Iterable[int]) -> bytes:
    """Pack token ids as an entry holds them."""
    return array(TOKEN_ID_TYPECODE, ids).tobytes()


def unpack_ids(packed: bytes) -> "array[int]":
    """Unpack token ids."""
    ids = array(TOKEN_ID_TYPECODE)
    ids.frombytes(packed)
    return ids


def unpack_logprobs(packed: bytes) -> "array[float]":
    """Unpack logprobs."""
    values: array[float] = array(LOGPROB_TYPECODE)
    values.frombytes(packed)
    return values
