"""The response to a compaction trigger: exactly one item, regardless of other model output."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from dovetail_model import Event, Failure, Finish, Message, Request, TextBlock, TextDelta, Usage
from dovetail_protocols.codec import Clock, IdFactory
from dovetail_protocols.responses.encode import ResponsesEncoder
from dovetail_protocols.responses.item_list import complete_item
from dovetail_protocols.responses.output_items import FrameWriter, OutputItem
from dovetail_protocols.responses.response import ResponseObject, ResponseOutcome, to_outcome
from dovetail_protocols.responses.summary import pack_summary
from dovetail_protocols.responses.wire import CompactionOut

# An error instead of an empty item, with which the client would lose the conversation.
_NO_SUMMARY = Failure("engine", "The model generated no summary of the conversation.")


class CompactionItem(OutputItem):
    """The summary of the conversation, opaque to the client. It has no deltas."""

    __slots__ = ()
    prefix = "cmp_"

    def encode_frames(self) -> bytes:
        """Return all of its frames, once the summary is available."""
        return self._added(CompactionOut(self.id, "")) + self._done()

    def final(self) -> CompactionOut:
        return CompactionOut(self.id, pack_summary(self.text))


class CompactionEncoder(ResponsesEncoder):
    """Collects the text, omits reasoning, and sends the item when it is complete."""

    __slots__ = ("_ids", "_pieces")

    def __init__(self, request: Request, ids: IdFactory, clock: Clock) -> None:
        super().__init__(request, ids, clock)
        self._ids = ids
        self._pieces: list[str] = []

    def _keep(self, event: TextDelta) -> bytes:
        self._pieces.append(event.text)
        return b""

    def _done(self, event: Finish) -> bytes:
        text = "".join(self._pieces)
        end = _outcome(to_outcome(event.reason, None, truncated=False), text)
        if end.status != "completed":
            return self._end(end)
        item = _item(text, self._ids, self._frames)
        self._items.all.append(item)
        return item.encode_frames() + self._end(end)

    def _skip(self, event: Event) -> bytes:
        return b""

    _on: ClassVar[dict[type, Callable[[Any, Any], bytes]]] = {
        **dict.fromkeys(ResponsesEncoder._on, _skip),
        TextDelta: _keep,
        Finish: _done,
        Usage: ResponsesEncoder._on[Usage],
        Failure: ResponsesEncoder._on[Failure],
    }


def encode_compaction(
    request: Request, messages: Sequence[Message], ids: IdFactory, clock: Clock
) -> bytes:
    """Encode a non-streaming compaction."""
    message = messages[0]
    response = ResponseObject(request, ids, clock)
    text = "".join(block.text for block in message.blocks if isinstance(block, TextBlock))
    end = _outcome(to_outcome(message.finish, message.failure, truncated=False), text)
    output = [_item(text, ids, FrameWriter()).final()] if end.status == "completed" else []
    return bytes(response.finished(end, output, message.usage))


def to_compaction_response(
    response: bytes, user_messages: Sequence[msgspec.Raw], ids: IdFactory
) -> bytes:
    """Convert the response to a trigger to the response of the compaction endpoint.

    User messages stay unchanged; the item with the summary comes last.
    """
    fields = msgspec.json.decode(response, type=dict[str, msgspec.Raw])
    items = msgspec.json.decode(fields["output"], type=list[msgspec.Raw])
    output = [*(_message(raw, ids) for raw in user_messages), *items]
    names = ("id", "created_at", "usage")
    more: dict[str, Any] = {name: fields[name] for name in names}
    return msgspec.json.encode({**more, "object": "response.compaction", "output": output})


def _message(raw: msgspec.Raw, ids: IdFactory) -> dict[str, Any]:
    item: dict[str, Any] = msgspec.json.decode(raw)
    return complete_item(item, ids("msg_")) | {"status": "completed"}


def _outcome(end: ResponseOutcome, text: str) -> ResponseOutcome:
    if end.status == "completed" and not text.strip():
        return to_outcome("error", _NO_SUMMARY, truncated=False)
    return end


def _item(text: str, ids: IdFactory, frames: FrameWriter) -> CompactionItem:
    item = CompactionItem(ids(CompactionItem.prefix), 0, frames)
    item.pieces.append(text.strip())
    return item
