"""One answer of an upstream: bytes in, events out, with an end that can be relied on."""

from collections.abc import Sequence

from dovetail.engines.openai.errors import error_in_stream
from dovetail.engines.openai.raw_text import RawReader
from dovetail.engines.openai.restore import Restorer
from dovetail_model import Diagnostic, Event, Failure, Finish, Usage
from dovetail_protocols import ChatReader, ResponsesReader


class AnswerReader:
    """Reads one answer. `lost` is told with its first events.

    `unlimited` says that the client's limit lies beyond the window, which then is what ends it.
    """

    __slots__ = ("_counted", "_lost", "_reader", "_restorer", "_unlimited", "_who", "over")

    def __init__(
        self,
        who: str,
        reader: ChatReader | ResponsesReader,
        restorer: Restorer | RawReader,
        lost: Sequence[str] = (),
        unlimited: bool = False,
    ) -> None:
        self._who = who
        self._reader = reader
        self._restorer = restorer
        self._lost = [Diagnostic(code) for code in lost]
        self._unlimited = unlimited
        self._counted = False
        self.over = False

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that these bytes complete. Raises where they tell of a failure."""
        return self._told(self._reader.feed(chunk))

    def whole(self, body: bytes) -> list[Event]:
        """The events of an answer that did not come as a stream."""
        return self._told(self._reader.whole(body))

    def finish(self) -> list[Event]:
        """The events that the end of the connection completes."""
        return self._told(self._reader.finish())

    def _told(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for event in self._restorer.restore(events):
            match event:
                case Failure():
                    raise error_in_stream(self._who, event)
                case Usage():
                    self._counted = True
                    out.append(event)
                case Finish():
                    out += self._end(event)
                case _:
                    out.append(event)
        if out and self._lost:
            out, self._lost = [*self._lost, *out], []
        return out

    def _end(self, finish: Finish) -> list[Event]:
        """The end, the cost before it. Servers that do not count are told of."""
        self.over = True
        if self._unlimited and finish.reason == "length":
            finish = Finish("context_window")
        return [finish] if self._counted else [Diagnostic("usage_unknown"), Usage(), finish]
