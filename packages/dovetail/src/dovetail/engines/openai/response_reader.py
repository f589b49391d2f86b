"""Read one response of an upstream: convert bytes to events, ending with exactly one finish."""

from collections.abc import Sequence
from typing import Any

from dovetail.engines.openai.errors import error_from_stream_failure
from dovetail.engines.openai.raw_text import RawTextReader
from dovetail.engines.openai.tool_calls import ToolNameRestorer
from dovetail_model import Diagnostic, Event, Failure, Finish, ResponseFields, Usage
from dovetail_protocols import ChatReader, ResponsesReader


class UpstreamResponseReader:
    """Reads one response.

    `not_carried`: reported with the first events.
    `omitted`: fields of the client that were not sent, so that the response does not repeat them.
    `unlimited`: no token limit was sent, so that "length" means the context window.
    """

    __slots__ = (
        "_has_usage",
        "_held",
        "_reader",
        "_restorer",
        "_server_name",
        "_unlimited",
        "is_finished",
    )

    def __init__(
        self,
        server_name: str,
        reader: ChatReader | ResponsesReader,
        restorer: ToolNameRestorer | RawTextReader,
        not_carried: Sequence[str] = (),
        unlimited: bool = False,
        omitted: Sequence[str] = (),
    ) -> None:
        self._server_name = server_name
        self._reader = reader
        self._restorer = restorer
        # Without these, an error before the output still determines the status of the response.
        # The tier is that of the server, which most servers do not return.
        unknown = dict.fromkeys(("service_tier", *omitted))
        self._held: list[Event] = [
            ResponseFields("responses", unknown),
            *(Diagnostic(code) for code in not_carried),
        ]
        self._unlimited = unlimited
        self._has_usage = False
        self.is_finished = False

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that these bytes complete. Raise an error if they report a failure."""
        return self._process(self._reader.feed(chunk))

    def read_body(self, body: bytes) -> list[Event]:
        """Return the events of a non-streaming response."""
        return self._process(self._reader.whole(body))

    def finish(self) -> list[Event]:
        """Return the events that the end of the connection completes."""
        return self._process(self._reader.finish())

    def _process(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for event in self._restorer.restore(events):
            match event:
                case Failure():
                    raise error_from_stream_failure(self._server_name, event)
                case Usage():
                    self._has_usage = True
                    out.append(event)
                case Finish():
                    out += self._finish_events(event)
                case _:
                    out.append(event)
        if not self._held:
            return out
        self._held += [event for event in out if isinstance(event, ResponseFields)]
        out = [event for event in out if not isinstance(event, ResponseFields)]
        if out:
            out, self._held = [*_combine_fields(self._held), *out], []
        return out

    def _finish_events(self, finish: Finish) -> list[Event]:
        """Return the finish after the usage, with a diagnostic if the server reported no usage."""
        self.is_finished = True
        if self._unlimited and finish.reason == "length":
            finish = Finish("context_window")
        return [finish] if self._has_usage else [Diagnostic("usage_unknown"), Usage(), finish]


def _combine_fields(events: Sequence[Event]) -> list[Event]:
    """Return the events with one event for all fields, which is the first."""
    fields: dict[str, Any] = {}
    api = ""
    for event in events:
        if isinstance(event, ResponseFields):
            api, fields = event.api, {**fields, **event.fields}
    others = (event for event in events if not isinstance(event, ResponseFields))
    return [ResponseFields(api, fields), *others]
