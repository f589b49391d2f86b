"""The answer to a compaction trigger: exactly one item, whatever the model said around it."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from dovetail_model import Event, Failure, Finish, Message, Request, TextBlock, TextDelta, Usage
from dovetail_protocols.codec import Clock, Ids
from dovetail_protocols.responses.encode import Encoder
from dovetail_protocols.responses.item_list import listed
from dovetail_protocols.responses.output_items import Frames, Item
from dovetail_protocols.responses.response import Outcome, Response, outcome
from dovetail_protocols.responses.summary import pack
from dovetail_protocols.responses.wire import CompactionOut

# Not an empty item: with it the client would lose the conversation.
_NOTHING = Failure("engine", "The model gave no summary of the conversation.")


class CompactionItem(Item):
    """The conversation as a summary, opaque to the client. It has no deltas."""

    __slots__ = ()
    prefix = "cmp_"

    def whole(self) -> bytes:
        """All its frames, once the summary is there."""
        return self._added(CompactionOut(self.id, "")) + self._done()

    def final(self) -> CompactionOut:
        return CompactionOut(self.id, pack(self.text))


class CompactionEncoder(Encoder):
    """Keeps the text, leaves out thoughts, and sends the item when all of it is there."""

    __slots__ = ("_ids", "_pieces")

    def __init__(self, request: Request, ids: Ids, clock: Clock) -> None:
        super().__init__(request, ids, clock)
        self._ids = ids
        self._pieces: list[str] = []

    def _keep(self, event: TextDelta) -> bytes:
        self._pieces.append(event.text)
        return b""

    def _done(self, event: Finish) -> bytes:
        text = "".join(self._pieces)
        end = _outcome(outcome(event.reason, None, cut=False), text)
        if end.status != "completed":
            return self._end(end)
        item = _item(text, self._ids, self._frames)
        self._items.all.append(item)
        return item.whole() + self._end(end)

    def _skip(self, event: Event) -> bytes:
        return b""

    _on: ClassVar[dict[type, Callable[[Any, Any], bytes]]] = {
        **dict.fromkeys(Encoder._on, _skip),
        TextDelta: _keep,
        Finish: _done,
        Usage: Encoder._on[Usage],
        Failure: Encoder._on[Failure],
    }


def encode_compaction(
    request: Request, messages: Sequence[Message], ids: Ids, clock: Clock
) -> bytes:
    """The same as a whole answer."""
    message = messages[0]
    response = Response(request, ids, clock)
    text = "".join(block.text for block in message.blocks if isinstance(block, TextBlock))
    end = _outcome(outcome(message.finish, message.failure, cut=False), text)
    output = [_item(text, ids, Frames()).final()] if end.status == "completed" else []
    return bytes(response.ended(end, output, message.usage))


def compacted(response: bytes, said: Sequence[msgspec.Raw], ids: Ids) -> bytes:
    """The response to a trigger as the answer of the endpoint that compacts.

    What the user said stays as it was said; the item with the summary comes last.
    """
    fields = msgspec.json.decode(response, type=dict[str, msgspec.Raw])
    items = msgspec.json.decode(fields["output"], type=list[msgspec.Raw])
    output = [*(_message(raw, ids) for raw in said), *items]
    names = ("id", "created_at", "usage")
    more: dict[str, Any] = {name: fields[name] for name in names}
    return msgspec.json.encode({**more, "object": "response.compaction", "output": output})


def _message(raw: msgspec.Raw, ids: Ids) -> dict[str, Any]:
    item: dict[str, Any] = msgspec.json.decode(raw)
    return listed(item, ids("msg_")) | {"status": "completed"}


def _outcome(end: Outcome, text: str) -> Outcome:
    if end.status == "completed" and not text.strip():
        return outcome("error", _NOTHING, cut=False)
    return end


def _item(text: str, ids: Ids, frames: Frames) -> CompactionItem:
    item = CompactionItem(ids(CompactionItem.prefix), 0, frames)
    item.pieces.append(text.strip())
    return item
