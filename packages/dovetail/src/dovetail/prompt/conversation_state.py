"""What the server itself has put into a conversation, recorded with the generated turns.

A prompt is more than the client's messages: the order of its tools, definitions of tools that
arrived later, notices at its end, and context edits are the server's decisions. They must be the
same in all later prompts of the conversation, so they are recorded with the turn that was generated
after them. Recognition does not depend on them: it compares what clients send.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from dovetail.ledger.turn_digest import compute_digest
from dovetail.prompt.appended_text import append_text, can_append
from dovetail.prompt.context_edits import ContextEdits
from dovetail_model import ToolSpec, Turn

FIRST_TURN = "first"  # in place of an entry id: the first assistant turn, if it has no entry
AdditionKind = Literal["tools_added", "tools_removed", "moved_text", "notice"]


class ToolSignature(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The identity of a tool in the head: its name for the model, and its definition's digest."""

    name: str
    digest: bytes


class PromptAddition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Text that the server appended to the end of a prompt.

    `entry_id` is the turn that was generated after it; empty for the turn that is to come.
    """

    kind: AdditionKind
    text: str
    entry_id: str = ""


class SystemSection(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A section of the system text that the client may renew.

    `shown`: the section in the head. `newest`: the section that the model read last.
    `rest`: the digest of the system text without it.
    """

    shown: str
    newest: str
    rest: bytes


class ConversationState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The server's decisions about the prompts of a conversation.

    `head_tools`: the tools in the head in the order of the first prompt.
    `late_tools`: the definitions that the model read after the head, as it read them last.
    `old_tools`: the definitions of tools in the head that the client no longer declares so.
    `withdrawn`: the names of tools that the model read are no longer available.
    `additions`: the texts at the ends of earlier prompts, oldest first.
    `section`: the section of the system text that may change, if it has one.
    """

    head_tools: tuple[ToolSignature, ...] = ()
    late_tools: tuple[ToolSpec, ...] = ()
    old_tools: tuple[ToolSpec, ...] = ()
    withdrawn: tuple[str, ...] = ()
    additions: tuple[PromptAddition, ...] = ()
    edits: ContextEdits = ContextEdits()
    section: SystemSection | None = None


EMPTY_STATE = ConversationState()
_NO_EFFECT = EMPTY_STATE.edits.effect()
_decoder = msgspec.msgpack.Decoder(ConversationState)


class StateRecord(msgspec.Struct, frozen=True):
    """A state as recorded with a turn: `entry_id` has it already, or is empty if it is new."""

    state: ConversationState = EMPTY_STATE
    entry_id: str = ""

    def with_state(self, state: ConversationState) -> "StateRecord":
        """Return the record of a state, which is this one if the state has not changed."""
        return self if state == self.state else StateRecord(state)


EMPTY_RECORD = StateRecord()


def encode_state(record: StateRecord) -> bytes:
    """Encode a state for the entry of the next turn. Empty if another entry has it."""
    if record.entry_id or record.state == EMPTY_STATE:
        return b""
    return msgspec.msgpack.encode(record.state)


def decode_state(encoded: bytes, entry_id: str) -> StateRecord:
    """Decode the state that an entry holds. Undecodable data gives the empty state."""
    try:
        state = _decoder.decode(encoded)
    except msgspec.DecodeError:
        return EMPTY_RECORD
    additions = tuple(
        msgspec.structs.replace(addition, entry_id=addition.entry_id or entry_id)
        for addition in state.additions
    )
    return StateRecord(msgspec.structs.replace(state, additions=additions), entry_id)


def digest_edits(state: ConversationState) -> bytes:
    """Compute the digest of the context edits. Empty if there are none."""
    if state.edits == EMPTY_STATE.edits:
        return b""
    effect = state.edits.effect()
    return b"" if effect == _NO_EFFECT else compute_digest(msgspec.msgpack.encode(effect))


def append_additions(
    turns: tuple[Turn, ...], positions: Mapping[str, int], additions: Sequence[PromptAddition]
) -> tuple[Turn, ...]:
    """Append additions to the turns before the turns that were generated after them.

    `positions` has the index of each recognized entry. An addition before an entry that is not
    among them belongs to another branch of the conversation.
    """
    changed = list(turns)
    for addition in additions:
        if addition.entry_id == FIRST_TURN:
            at = next((at for at, turn in enumerate(turns) if turn.role == "assistant"), 0)
        else:
            at = positions.get(addition.entry_id, 0) if addition.entry_id else len(turns)
        if at > 0 and can_append(changed[at - 1]):
            changed[at - 1] = append_text(changed[at - 1], addition.text)
    return tuple(changed) if additions else turns
