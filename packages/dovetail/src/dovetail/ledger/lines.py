"""Which turns of a set go on from each other without a break, as far as the entries say.

A turn goes on from its parent if its prompt begins with the whole of it: the parent's prompt and
all that was generated. Else a template has dropped thoughts there, or a client has changed its
history. Where several go on from one turn, the history forks: the first of them is the line's next
turn, the others begin lines of their own.
"""

from array import array
from collections.abc import Mapping

from dovetail.ledger.entry import TOKEN_ID_TYPECODE, LedgerEntry

_TOKEN_ID_BYTES = array(TOKEN_ID_TYPECODE).itemsize


def count_token_ids(entry: LedgerEntry) -> int:
    """How many ids an entry's whole has: its prompt and what was generated."""
    return entry.keep + (len(entry.suffix) + len(entry.generated)) // _TOKEN_ID_BYTES


def split_branches(entries: Mapping[str, LedgerEntry]) -> list[list[LedgerEntry]]:
    """The unbroken lines, in the order of their first turns. Each turn is in one of them."""
    following: dict[str, LedgerEntry] = {}
    for entry in entries.values():
        parent = entries.get(entry.parent or "")
        if parent is not None and entry.keep == count_token_ids(parent):
            following.setdefault(parent.id, entry)
    inner = {entry.id for entry in following.values()}
    return [_follow_branch(entry, following) for entry in entries.values() if entry.id not in inner]


def _follow_branch(first: LedgerEntry, following: Mapping[str, LedgerEntry]) -> list[LedgerEntry]:
    line = [first]
    while (entry := following.get(line[-1].id)) is not None:
        line.append(entry)
    return line
