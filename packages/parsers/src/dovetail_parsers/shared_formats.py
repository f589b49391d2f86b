"""Tables that several families share except for their markers."""

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.grammar import CallAction, Channel, Edge, Mode, ToolFormat

_BOTH = CallAction.OPEN | CallAction.CLOSE


@dataclass(frozen=True)
class TaggedFormat:
    """Calls as tags: a name, then parameters with raw values.

        <section> <name>NAME</name-end> <key>KEY<value-begin>VALUE<value-end> ... <end> </section>

    `values` maps the separator between key and value to the value's channel and closers.
    With `many`, one section contains all calls; otherwise each call has its own. `pad` is the white
    space that the format puts between tags.
    """

    name: tuple[str, str]
    key: str
    values: Mapping[str, tuple[Channel, tuple[str, ...]]]
    end: str
    section: tuple[str, str] | None = None
    many: bool = False
    pad: str = "\n"
    lead: str = "\n"
    strays: tuple[str, ...] = ()  # inner closers that cannot mean anything else

    def to_tool_format(self) -> ToolFormat:
        modes = {
            "name": Mode(Channel.NAME, on={self.name[1]: Edge("head", pad=self.pad)}),
            "head": self._parameters(CallAction.OPEN, _BOTH),
            "args": self._parameters(CallAction.NONE, CallAction.CLOSE),
            "key": Mode(
                Channel.KEY, on={mark: Edge(self._value_mode(mark)) for mark in self.values}
            ),
        }
        for mark, (channel, closers) in self.values.items():
            modes[self._value_mode(mark)] = Mode(
                channel, on={closer: Edge("args", pad=self.pad) for closer in closers}
            )
        return ToolFormat(
            modes=modes | self._outer(),
            orphans=(self.section[1] if self.section else self.end, *self.strays),
            lead=self.lead,
        )

    def _value_mode(self, mark: str) -> str:
        """Return the mode of a value. Separators that start the same kind of value share a mode."""
        kinds = list(dict.fromkeys(self.values.values()))
        return f"value{kinds.index(self.values[mark])}"

    def _parameters(self, opens: CallAction, closes: CallAction) -> Mode:
        """Read between parameters: the next one, or the end of the call, which may be missing."""
        after = "done" if self.section else "text"
        pad = self.pad if self.section else ""
        missing = {self.section[1]: Edge("text", closes)} if self.section else {}
        if closes is CallAction.CLOSE:  # the next call starts although this one never ended
            missing[self.name[0]] = Edge("name", closes)
            if self.section:
                missing[self.section[0]] = Edge("section", closes)
        return Mode(
            Channel.GAP,
            on={self.key: Edge("key", opens), self.end: Edge(after, closes, pad=pad)},
            tolerate=missing,
        )

    def _outer(self) -> dict[str, Mode]:
        name = self.name[0]
        if self.section is None:
            return {"text": Mode(Channel.TEXT, on={name: Edge("name")})}
        begin, end = self.section
        again = {name: Edge("name")}
        return {
            "text": Mode(Channel.TEXT, on={begin: Edge("section", pad=self.pad)}, tolerate=again),
            "section": Mode(Channel.GAP, on=again),
            "done": Mode(
                Channel.GAP,
                on={**(again if self.many else {}), end: Edge("text")},
                tolerate=again | {self.end: Edge("done")},
            ),
        }


def raw_value(*closers: str) -> tuple[Channel, tuple[str, ...]]:
    """Return the channel and closers of a value that is typed by the tool's schema."""
    return Channel.VALUE, closers


def json_envelope_format(
    envelope: Envelope, wraps: Mapping[str, str], *, pad: str = "", lead: str = ""
) -> ToolFormat:
    """Calls as JSON between an opener and its closer ("" if the format has none)."""
    closers = {closer: Edge("text") for closer in wraps.values() if closer}
    end = Edge("done", pad=pad) if closers else Edge("text")
    modes = {
        "text": Mode(Channel.TEXT, on={opener: Edge("call", pad=pad) for opener in wraps}),
        "call": Mode(Channel.BODY, body=envelope, end=end),
    }
    if closers:
        modes["done"] = Mode(Channel.GAP, on=closers)
    return ToolFormat(modes=modes, orphans=tuple(closers), lead=lead)
