"""Turns that a client sends in several pieces."""

from collections.abc import Sequence

from dovetail_model import Block, Turn
from dovetail_protocols.request_body import RequestBody


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
