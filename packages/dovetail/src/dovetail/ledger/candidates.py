"""Choose among the entries that may be a client's turn, or decide that none is certain."""

import re

from dovetail.ledger.entry import LedgerEntry, normalize_session_name
from dovetail.ledger.equivalence import may_begin
from dovetail.ledger.ledger import ChainCandidates, Ledger
from dovetail.ledger.store import MAX_LOOKUP_IDS, hides_reasoning, make_call_key
from dovetail.ledger.turn_digest import TurnDigest
from dovetail_model import ReasoningBlock, Turn

_OWN_CALL_ID = re.compile(r"(?:call|toolu|fc)[0-9a-z]{24}")


def single_candidate(entries: list[LedgerEntry], notes: list[str]) -> LedgerEntry | None:
    """Return an entry if all candidates have the same tokens and lineage, else None."""
    if len({(entry.generated, entry.lineage) for entry in entries}) > 1:
        notes.append("ambiguous_turn")
        return None
    return entries[0] if entries else None


def accept_unique(
    found: ChainCandidates, turn: Turn, model: str, session: str | None, notes: list[str]
) -> LedgerEntry | None:
    """Return the only candidate, if no other turn can be the one that the client sends back.

    A candidate that hides nothing is accepted in any case: its tokens spell what the client sent.
    A session that the client names limits the search to its turns, if it has a candidate: then
    turns of other sessions that the store does not know make no difference. A turn that hides
    something is accepted only for the session that its client named, or if neither has a name: the
    history of another session may come from another server.
    """
    candidates, marks, certain = found.entries, found.marks, found.exhaustive
    session = normalize_session_name(session or "")
    if own := [entry for entry in candidates if session and entry.session_name == session]:
        candidates, certain = own, found.responded
        marks = [mark for mark in marks if mark.session in ("", session)]
    if not any(entry.model == model for entry in candidates):
        return None
    if len({entry.model for entry in candidates}) > 1:
        notes.append("ambiguous_turn")
        return None
    entry = single_candidate(candidates, notes)
    if entry is None or _hides_nothing(entry, turn):
        return entry
    of_session = [entry for entry in candidates if entry.session_name == session]
    if marks or not certain or not of_session:
        notes.append("ambiguous_turn" if marks else "unverified_turn")
        return None
    return of_session[0]


async def drop_unlike_marks(
    found: ChainCandidates, turn: Turn, tenant: str, ledger: Ledger
) -> ChainCandidates:
    """Remove the marks of turns that were recorded and do not begin with the client's copy.

    An interrupted turn stays open in the store, because it is not known how much of it its client
    received; but not more than was recorded.
    """
    if not found.entries:
        return found
    marks = []
    for at, mark in enumerate(found.marks):
        entry = await ledger.get(tenant, mark.id) if at < MAX_LOOKUP_IDS else None
        if entry is None or may_begin(entry, turn):
            marks.append(mark)
    return found._replace(marks=marks)


def _hides_nothing(entry: LedgerEntry, turn: Turn) -> bool:
    """Return whether the client sent all reasoning of the entry, or there is none."""
    if not hides_reasoning(entry):
        return True
    recorded = [span.shown.strip() for span in entry.spans if span.kind == "reasoning"]
    sent = [block.text.strip() for block in turn.blocks if isinstance(block, ReasoningBlock)]
    return "".join(sent) == "".join(recorded) or sent == ["\n".join(recorded)]


def has_foreign_call(entry: LedgerEntry, digest: TurnDigest) -> bool:
    """Return whether a call id was issued here for another turn. Foreign ids are ignored."""
    for theirs, ours in zip(digest.call_ids, entry.call_ids, strict=False):
        one, other = make_call_key(theirs), make_call_key(ours)
        if one != other and len(one) == len(other) and one[:4] == other[:4]:
            return True
    return False


def has_own_call_ids(digest: TurnDigest) -> bool:
    """Return whether a turn has call ids issued by this server, and no seal to restore it."""
    return not digest.seals and any(
        _OWN_CALL_ID.fullmatch(make_call_key(id)) for id in digest.call_ids
    )
