"""Keep content that clients move where the model read it, also that of other processes.

The requests of this process are in memory. The ends of all other requests are in the ledger, with
the turns that were generated after them.
"""

from dovetail.ledger.recognition import TurnRecognizer
from dovetail.ledger.recognized_history import RecognitionScope
from dovetail.prompt.moved_content import (
    MovedContent,
    RestoredTurns,
    SentTurns,
    Turns,
    has_moved,
    list_texts,
    split_groups,
)
from dovetail.prompt.request_tail import restore_tail
from dovetail.prompt.turn_order import replace_turns
from dovetail_model import Identity, Message, Request, Turn


class MovedContentKeeper:
    """Restores moved content in the requests for one model."""

    def __init__(self, recognizer: TurnRecognizer, model: str) -> None:
        self._recognizer = recognizer
        self._model = model
        self._memory = MovedContent()

    async def restore(self, request: Request) -> Request:
        """Return a request with content that was moved to its end, where the model read it."""
        restored = self._memory.restore(request.identity, request.turns)
        turns = restored.turns
        if not restored.is_current and _may_have_moved(turns):
            scope = RecognitionScope(request.identity.tenant, b"", self._model)
            turns = await self._restore_recorded(restored, scope)
        return request if turns is request.turns else replace_turns(request, request.system, turns)

    def record(self, identity: Identity, turns: SentTurns, response: Message) -> None:
        """Record the turns of a request and the response to it."""
        self._memory.record(identity, turns, response)

    async def _restore_recorded(self, restored: RestoredTurns, scope: RecognitionScope) -> Turns:
        """Restore the content of requests that this process does not know."""
        *groups, end = split_groups(restored.turns)
        end_texts = list_texts(end.turns)
        known = 0
        if restored.known is not None:
            known = 1 + sum(turn.role == "assistant" for turn in restored.known.sent)
        turns: list[Turn] = []
        changed = False
        for at, (before, assistant) in enumerate(groups):
            assert assistant is not None
            if at >= known:
                entry = await self._recognizer.find_by_handle(assistant, scope)
                found = None
                if entry is not None and entry.request_tail:
                    found = restore_tail(
                        before, entry.request_tail, lambda text: has_moved(text, end_texts)
                    )
                before, changed = (before, changed) if found is None else (found, True)
            turns += (*before, assistant)
        return (*turns, *end.turns) if changed else restored.turns


def _may_have_moved(turns: Turns) -> bool:
    """Return whether the end of a request has a harness's text, without which nothing has moved."""
    for at in range(len(turns) - 1, -1, -1):
        if turns[at].role == "assistant":
            return any("<" in text for text in list_texts(turns[at + 1 :]))
    return False
