"""Content that a client moves from the end of one request to the end of the next.

Some harnesses end each request with a block of their own (a reminder, a list of running processes),
which they remove from its place in the next request and send again at the new end. Removing it
would change the prompt from that place on. It stays where the model read it instead; the client's
new copy is at the end anyway.

The earlier request is identified by the ids of the calls that the model made in response to it,
which are unique, or by the session that the client names. Requests of other processes are not in
memory, but `request_tail` records their ends in the ledger. Only text at the end of a message, or a
message, is restored, and only if the end of the request has text with the same first line: what a
user deletes is not restored.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dovetail.ledger.store import make_call_key
from dovetail.storage.lru import LruCache
from dovetail_model import (
    Block,
    Identity,
    Message,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

_MAX_CHARS = 64 << 20  # of the recorded turns
_MIN_HEADING_CHARS = 8  # a shorter first line does not identify a block

_Part = tuple[Role, Block]
Turns = tuple[Turn, ...]


class SentTurns(NamedTuple):
    """The turns of a request as sent, and with moved content. `chars` is their length."""

    sent: Turns
    used: Turns
    chars: int = 0


NO_TURNS = SentTurns((), ())


_Key = tuple[str, str]


class _StoredTurns(NamedTuple):
    """The turns of a request, the keys that lead to them, and the keys of the request before it."""

    turns: SentTurns
    keys: tuple[_Key, ...]
    keys_before: tuple[_Key, ...]


class RestoredTurns(NamedTuple):
    """The turns of a request with moved content.

    `known`: the earlier request that it continues, if any. `is_current`: whether only one response
    followed that request.
    """

    turns: Turns
    known: SentTurns | None = None
    is_current: bool = False


class TurnGroup(NamedTuple):
    """The turns before an assistant turn, and that turn; None at the end of the request."""

    turns: Turns
    assistant: Turn | None


class MovedContent:
    """Records the turns of requests, and restores what the next request removed."""

    __slots__ = ("_sent",)

    def __init__(self, max_chars: int = _MAX_CHARS) -> None:
        self._sent: LruCache[_Key, _StoredTurns] = LruCache(
            max_size=max_chars, size_of=lambda stored: stored.turns.chars
        )

    def restore(self, identity: Identity, turns: Turns) -> RestoredTurns:
        """Return turns with content that was moved to their end, where the model read it."""
        stored, is_current = self._find(identity, turns)
        if stored is None:
            return RestoredTurns(turns)
        before = stored.turns
        if before.used != before.sent or turns[: len(before.sent)] != before.sent:
            turns = _restore(turns, before)
        return RestoredTurns(turns, before, is_current)

    def record(self, identity: Identity, turns: SentTurns, response: Message) -> None:
        """Record the turns of a request by the calls of its response and by its session.

        Each request has its own copy of the history, so that only the last two requests of a
        conversation are stored: a client may repeat the last one.
        """
        tenant, session = identity.tenant, identity.session
        before, _ = self._find(identity, turns.sent)
        calls = (block for block in response.blocks if isinstance(block, ToolCallBlock))
        keys = tuple(_call_key(tenant, call) for call in calls)
        stored = _StoredTurns(turns, keys, before.keys if before is not None else ())
        for key in keys:
            self._sent.put(key, stored)
        if session is not None:
            self._sent.put((tenant, "session " + session), stored)
        for key in before.keys_before if before is not None else ():
            self._sent.pop(key)

    def _find(self, identity: Identity, turns: Turns) -> tuple[_StoredTurns | None, bool]:
        """Return the last known request that these turns continue, and whether it is current."""
        tenant, session = identity.tenant, identity.session
        is_current = True
        for turn in reversed(turns):
            if turn.role != "assistant":
                continue
            for block in turn.blocks:
                if isinstance(block, ToolCallBlock):
                    known = self._sent.get(_call_key(tenant, block))
                    if known is not None:
                        return self._newer(tenant, session, known), is_current
            is_current = False
        last = self._sent.get((tenant, "session " + session)) if session is not None else None
        return last, False

    def _newer(self, tenant: str, session: str | None, known: _StoredTurns) -> _StoredTurns:
        """Return the last request of the session if it continues this one."""
        last = self._sent.get((tenant, "session " + session)) if session is not None else None
        used = known.turns.used
        if last is None or len(last.turns.used) <= len(used):
            return known
        return last if last.turns.used[: len(used)] == used else known


def _call_key(tenant: str, call: ToolCallBlock) -> _Key:
    return tenant, "call " + make_call_key(call.id)


def _restore(turns: Turns, before: SentTurns) -> Turns:
    *groups, end = split_groups(turns)
    end_texts = list_texts(end.turns)
    restored: list[Turn] = []
    known = zip(split_groups(before.sent), split_groups(before.used), strict=False)
    for at, (group, (sent, used)) in enumerate(zip(groups, known, strict=False)):
        same = group.turns in (sent.turns, used.turns)
        if not same and not _is_moved(sent.turns, group.turns, end_texts):
            break
        restored += used.turns
        if sent.assistant not in (None, group.assistant):
            groups[at] = group._replace(turns=())  # its turns are restored already
            break
        restored += [group.assistant] if group.assistant is not None else []
    else:
        at = min(len(groups), len(split_groups(before.sent)))
    rest = (turn for group in groups[at:] for turn in (*group.turns, group.assistant) if turn)
    return (*restored, *rest, *end.turns)


def split_groups(turns: Turns) -> list[TurnGroup]:
    """Split turns at the assistant turns. The last group is the end of the request."""
    groups: list[TurnGroup] = []
    start = 0
    for at, turn in enumerate(turns):
        if turn.role == "assistant":
            groups.append(TurnGroup(turns[start:at], turn))
            start = at + 1
    return [*groups, TurnGroup(turns[start:], None)]


def _is_moved(before: Turns, now: Turns, end_texts: Sequence[str]) -> bool:
    """Return whether `now` lacks only text that has moved to the end."""
    removed = _find_removed(list(_parts(before)), list(_parts(now)))
    return bool(removed) and all(has_moved(text, end_texts) for text in removed)


def _find_removed(before: list[_Part], now: list[_Part]) -> list[str]:
    """Return the texts at the end of `before` that `now` lacks; none if it differs otherwise."""
    count = len(now)
    removed: list[str] = []
    if before[:count] != now:
        *same, (role, last) = now or [("user", TextBlock(""))]
        if len(before) < count or before[: count - 1] != same:
            return []
        old_role, old = before[count - 1]
        if not (isinstance(last, TextBlock) and isinstance(old, TextBlock) and role == old_role):
            return []
        if not old.text.startswith(last.text):
            return []
        removed.append(old.text[len(last.text) :])
    for _, block in before[count:]:
        if not isinstance(block, TextBlock):
            return []
        removed.append(block.text)
    return removed


def list_texts(turns: Iterable[Turn]) -> list[str]:
    """Return the texts of turns and of the tool results in them."""
    return [text for _, block in _parts(turns) for text in _texts(block)]


def has_moved(text: str, end_texts: Sequence[str]) -> bool:
    """Return whether the end of a request has a text with the same first line."""
    heading = text.strip().partition("\n")[0].strip()
    if len(heading) < _MIN_HEADING_CHARS:
        return text.strip() in map(str.strip, end_texts)
    return any(heading in other for other in end_texts)


def _parts(turns: Iterable[Turn]) -> Iterator[_Part]:
    for turn in turns:
        for block in turn.blocks:
            yield turn.role, block


def _texts(block: Block) -> Iterator[str]:
    if isinstance(block, TextBlock):
        yield block.text
    elif isinstance(block, ToolResultBlock):
        for inner in block.blocks:
            yield from _texts(inner)
