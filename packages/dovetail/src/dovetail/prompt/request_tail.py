"""The texts of a harness at the end of a request, as recorded with the turn generated after them.

A client may remove them from the next request, see `moved_content`. The record restores them after
a restart and in other worker processes. Only texts that look like a harness's are recorded, which
are elements in angle brackets (`<system-reminder>`), and only if they are not too long.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from dovetail.ledger.turn_digest import compute_digest, digest_turn
from dovetail_model import Role, TextBlock, Turn

_MAX_CHARS = 32 << 10
_MAX_TEXTS = 8

Turns = tuple[Turn, ...]


class TailText(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A text at the end of a request.

    `place`: a turn of its own, a block of the turn before it, or the end of the text before it.
    `rest`: the digest of the turns before it, since the last assistant turn.
    """

    role: Role
    text: str
    place: Literal["turn", "block", "text"]
    rest: bytes


_decoder = msgspec.msgpack.Decoder(tuple[TailText, ...])


def encode_tail(turns: Turns) -> bytes:
    """Encode the texts that a client may move. Empty if there are none."""
    start = next((at for at in range(len(turns), 0, -1) if turns[at - 1].role == "assistant"), 0)
    texts: list[TailText] = []
    rest = turns[start:]
    while rest and len(texts) < _MAX_TEXTS:
        found = _split_last_text(rest)
        if found is None:
            break
        role = rest[-1].role
        rest, text, place = found
        texts.append(TailText(role, text, place, _digest_rest(rest)))
        if place == "text":
            break
    if not texts or sum(len(one.text) for one in texts) > _MAX_CHARS:
        return b""
    return msgspec.msgpack.encode(texts)


def restore_tail(turns: Turns, encoded: bytes, has_moved: Callable[[str], bool]) -> Turns | None:
    """Restore recorded texts that these turns lack. None if they lack none, or differ otherwise.

    `turns` are those before an assistant turn. `has_moved` states whether a text is at the end of
    the request.
    """
    try:
        texts = _decoder.decode(encoded)
    except msgspec.DecodeError:
        return None
    digest = _digest_rest(turns)
    first = next((at for at, text in enumerate(texts) if text.rest == digest), None)
    removed = texts[: first + 1] if first is not None else ()
    if not removed or not all(has_moved(one.text) for one in removed):
        return None
    for one in reversed(removed):
        turns = _append(turns, one)
    return turns


def _split_last_text(
    turns: Turns,
) -> tuple[Turns, str, Literal["turn", "block", "text"]] | None:
    """Split the last text off, if it is a harness's. Returns the turns before it and its place."""
    *before, turn = turns
    last = turn.blocks[-1] if turn.blocks else None
    start = _find_start(last.text) if isinstance(last, TextBlock) else None
    if start is None:
        return None
    assert isinstance(last, TextBlock)
    start_text = last.text[:start].rstrip()
    if start_text:
        shorter = Turn(turn.role, (*turn.blocks[:-1], TextBlock(start_text)))
        return (*before, shorter), last.text[len(start_text) :], "text"
    if len(turn.blocks) > 1:
        return (*before, Turn(turn.role, turn.blocks[:-1])), last.text, "block"
    return tuple(before), last.text, "turn"


def _find_start(text: str) -> int | None:
    """Return where the harness's part of a text begins: an element up to the end of the text."""
    if text.lstrip().startswith("<"):
        return 0
    start = text.find("\n<")
    return start if start >= 0 and text.rstrip().endswith(">") else None


def _digest_rest(turns: Sequence[Turn]) -> bytes:
    """Compute the digest of turns. White space at their end may be part of the removed text."""
    if not turns:
        return compute_digest()
    *before, turn = turns
    last = turn.blocks[-1] if turn.blocks else None
    if isinstance(last, TextBlock) and last.text != last.text.rstrip():
        turn = Turn(turn.role, (*turn.blocks[:-1], TextBlock(last.text.rstrip())))
    return compute_digest(*(digest_turn(one).digest for one in (*before, turn)))


def _append(turns: Turns, tail: TailText) -> Turns:
    if tail.place == "turn" or not turns:
        return (*turns, Turn(tail.role, (TextBlock(tail.text),)))
    *before, turn = turns
    last = turn.blocks[-1] if turn.blocks else None
    if tail.place == "text" and isinstance(last, TextBlock):
        joined = TextBlock(last.text.rstrip() + tail.text)
        return (*before, Turn(turn.role, (*turn.blocks[:-1], joined)))
    return (*before, Turn(turn.role, (*turn.blocks, TextBlock(tail.text))))
