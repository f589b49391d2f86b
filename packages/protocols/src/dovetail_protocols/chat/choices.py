"""The stream shared by chat and text completions: `n` choices, their end and their usage."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dovetail_model import Event, Finish, Usage
from dovetail_protocols.chat.outcome import as_failure, combine_usage
from dovetail_protocols.delta_run import NO_RUN, DeltaRun, DeltaRunEncoder
from dovetail_protocols.openai_error import error_body
from dovetail_protocols.sse import comment, frame

DONE = b"data: [DONE]\n\n"


class ChoiceWriter(Protocol):
    """Writes the chunks of one choice. `run` is the run that a single delta may continue."""

    usage: Usage
    finished: bool
    run: DeltaRun

    def write(self, event: Event) -> bytes: ...


class ChoiceStream(DeltaRunEncoder):
    """Encodes the chunks of one response. `opening` is sent before the first of them."""

    __slots__ = ("_choices", "_head", "_include_usage", "_opening", "_over")

    def __init__(
        self,
        head: bytes,
        choices: Sequence[ChoiceWriter],
        include_usage: bool,
        opening: bytes = b"",
    ) -> None:
        super().__init__()
        self._head = head
        self._choices = choices
        self._include_usage = include_usage
        self._opening = opening
        self._over = False

    def _encode(self, events: Sequence[Event], choice: int) -> bytes:
        writer = self._choices[choice]
        out: list[bytes] = []
        for event in events:
            if self._over:
                break
            if self._opening:
                out.append(self._opening)
                self._opening = b""
            failure = as_failure(event)
            if failure is not None:
                self._over = True
                out.append(frame(error_body(failure)))
            elif not writer.finished:
                out.append(writer.write(event))
                if type(event) is Finish and all(each.finished for each in self._choices):
                    out.append(self._end())
        self._run = NO_RUN if self._over else writer.run
        return b"".join(out)

    def keep_alive(self, *, in_reasoning: bool = False) -> bytes:
        """Return a comment: any bytes reset the timeouts of these APIs' clients."""
        return b"" if self._over else comment("keep-alive")

    def _end(self) -> bytes:
        self._over = True
        if not self._include_usage:
            return DONE
        usage = msgspec.json.encode(combine_usage([each.usage for each in self._choices]))
        return self._head + b'"choices":[],"usage":' + usage + b"}\n\n" + DONE
