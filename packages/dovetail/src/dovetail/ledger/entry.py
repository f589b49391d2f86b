"""A ledger entry: one assistant turn, and the difference of its prompt from the parent entry.

An entry does not hold the complete prompt: only its new tokens and the id of the parent.
"""

import hashlib
from array import array
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import Literal

import msgspec

from dovetail.storage.random_ids import new_id_number

TOKEN_ID_TYPECODE = "I"  # array type code of token ids: four bytes each
FINISH_INTERRUPTED = "broken"  # the engine failed, or the client disconnected
FINISH_REPEATED = "repeated"  # the server ended a turn that repeated itself
LOGPROB_TYPECODE = "f"  # array type code of logprobs; NaN for an unknown logprob

_MAX_SESSION_NAME_CHARS = 200  # a longer session name is stored as its hash


class EntrySpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of a turn: the raw model output, and what the client received of it.

    `raw`: the model output with markers.
    `shown`: the text that the client received; for a call, its arguments.
    `tokens`: the number of generated ids from the start of the turn to the end of the span.
    `id`: the public id of a call. `own_id`: the id that the model generated for it, if any.
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

    The token ids of an entry are its prompt and the generated tokens, without the stop token.

    `chain_before`, `chain`: the hash chain over the visible messages, without and with this turn.
    `head`: the hash of system text, tools and template switches.
    `lineage`: the hash chain over the entries as which the earlier messages were recognized,
    including reasoning.
    `opening`: the end of the prompt after its last role marker, if known.
    `thinking`: the reasoning settings of the request as JSON.
    `session`: the session that the client named, else that of the parent, else the id of the
    first entry of the branch.
    `agent`: the sub-agent that made the request.
    `response_number`: the random part of the public response id.
    `logprobs`: one number per generated id, and one for `stop` if known; empty if the engine
    reported none.
    `forced`: the ranges of generated ids that the model did not choose, because the server ended
    its reasoning.
    `state`: the state of the conversation, opaque to the ledger, if this turn changed it.
    `state_entry`: the entry that holds the state, if this one does not; empty if there is none.
    `names_session`: whether the client named the session. Older entries do not record it and
    count as named.
    `request_tail`: the texts at the end of the request that the client may move, opaque to the
    ledger.

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
    finish: str = "stop"  # the finish reason, FINISH_INTERRUPTED or FINISH_REPEATED
    created: float = 0.0
    lineage: bytes = b""
    opening: str | None = None
    thinking: bytes = b""
    session: str = ""
    agent: str = ""
    response_number: str = ""
    logprobs: bytes = b""
    forced: tuple[tuple[int, int], ...] = ()
    state: bytes = b""
    state_entry: str = ""
    names_session: bool = True
    request_tail: bytes = b""

    @property
    def session_name(self) -> str:
        """The session that the client named with this turn; empty if it named none."""
        return self.session if self.names_session else ""

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The public ids of the turn's calls."""
        return tuple(span.id for span in self.spans if span.kind == "call" and span.id)


def has_reasoning(entry: LedgerEntry) -> bool:
    """Return whether the model generated reasoning in a turn."""
    return any(span.kind == "reasoning" for span in entry.spans)


def normalize_session_name(name: str) -> str:
    """Return a session name as stored: hashed if too long, with unencodable characters replaced."""
    if len(name) > _MAX_SESSION_NAME_CHARS:
        return "sha256-" + hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
    return name.encode("utf-8", "replace").decode()


def create_entry_id() -> str:
    """Create an unguessable id. It never starts with a dash: users type it on command lines."""
    while True:
        entry_id = urlsafe_b64encode(new_id_number()).decode()
        if entry_id[0] != "-":
            return entry_id


def pack_ids(ids: Iterable[int]) -> bytes:
    """Pack token ids into the format of entries."""
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
