"""Tables that several families share except for their markers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dovetail_parsers.arguments.envelope import Envelope
from dovetail_parsers.grammar import CallAction, Channel, Edge, Mode, ToolFormat, UnwrappedCall

_BOTH = CallAction.OPEN | CallAction.CLOSE
_TAG = re.compile(r"(<\|?|\[)(\w+(?:\|?>|\]))")


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
            "head": self._parameters(CallAction.OPEN, _BOTH),
            "args": self._parameters(CallAction.NONE, CallAction.CLOSE),
        }
        for i, (_, after) in enumerate(quote_variants(self.name)):
            modes[_numbered("name", i)] = Mode(Channel.NAME, on={after: Edge("head", pad=self.pad)})
        for i in range(len(self._keys())):
            modes[_numbered("key", i)] = self._key_mode(i)
        for mark, (channel, closers) in self.values.items():
            modes[self._value_mode(mark)] = Mode(
                channel, on={closer: Edge("args", pad=self.pad) for closer in closers}
            )
        return ToolFormat(
            modes=modes | self._outer(),
            orphans=(self.section[1] if self.section else self.end, *self.strays),
            lead=self.lead,
        )

    def _keys(self) -> list[tuple[str, str]]:
        markers = self.key, next(iter(self.values))
        # Added quotes are part of the key's text: the opener alone makes the call certain.
        return quote_variants(markers) if self.key.endswith('"') else [markers]

    def _key_mode(self, variant: int) -> Mode:
        """Read a key up to the separator before its value, with the quotes of the variant."""
        on: dict[str, Edge] = {}
        for mark in self.values:
            edge = Edge(self._value_mode(mark))
            spelled = quote_variants((self.key, mark))[variant][1]
            on[spelled] = edge
            for quote in ('"', "'", ""):  # of the attributes behind the key
                on.setdefault(spelled[:1] + spelled[1:].replace('"', quote), edge)
        prescribed = {mark: on[mark] for mark in self.values} if not variant else on
        return Mode(Channel.KEY, on=prescribed, tolerate=on, read=_unquote)

    def _value_mode(self, mark: str) -> str:
        """Return the mode of a value. Separators that start the same kind of value share a mode."""
        kinds = list(dict.fromkeys(self.values.values()))
        return f"value{kinds.index(self.values[mark])}"

    def _parameters(self, opens: CallAction, closes: CallAction) -> Mode:
        """Read between parameters: the next one, or the end of the call, which may be missing."""
        after = "done" if self.section else "text"
        pad = self.pad if self.section else ""
        keys = {key: Edge(_numbered("key", i), opens) for i, (key, _) in enumerate(self._keys())}
        missing = {self.section[1]: Edge("text", closes)} if self.section else {}
        if closes is CallAction.CLOSE:  # the next call starts although this one never ended
            missing |= self._next_calls(closes)
            if self.section:
                missing[self.section[0]] = Edge("section", closes)
        return Mode(
            Channel.GAP,
            on={self.key: keys.pop(self.key), self.end: Edge(after, closes, pad=pad)},
            tolerate=keys | missing,
        )

    def _next_calls(self, action: CallAction = CallAction.NONE) -> dict[str, Edge]:
        names = quote_variants(self.name)
        return {name: Edge(_numbered("name", i), action) for i, (name, _) in enumerate(names)}

    def _outer(self) -> dict[str, Mode]:
        calls = self._next_calls()
        first = {self.name[0]: calls[self.name[0]]}
        if self.section is None:
            return {"text": Mode(Channel.TEXT, on=first, tolerate=calls)}
        begin, end = self.section
        return {
            "text": Mode(Channel.TEXT, on={begin: Edge("section", pad=self.pad)}, tolerate=calls),
            "section": Mode(Channel.GAP, on=first, tolerate=calls),
            "done": Mode(
                Channel.GAP,
                on={**(first if self.many else {}), end: Edge("text")},
                tolerate=calls | {self.end: Edge("done")},
            ),
        }


def quote_variants(markers: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the markers around an attribute's value, first as prescribed, then as also written.

    Models omit the quotes of `name="..."`, write single ones, and add quotes to `function=...`.
    """
    before, after = markers
    if before.endswith('="') and after.startswith('"'):
        bare = before[:-1], after[1:]
        return [markers, bare, (f"{bare[0]}'", f"'{bare[1]}")]
    if before.endswith("=") and after.startswith(">"):
        return [markers, (f'{before}"', f'"{after}'), (f"{before}'", f"'{after}")]
    return [markers]


def _unquote(key: str) -> tuple[str, str | None]:
    """Remove the quotes that models add to `parameter=...`."""
    quoted = len(key) > 2 and key[0] == key[-1] and key[0] in "\"'"
    return (key[1:-1] if quoted else key), None


def _numbered(mode: str, variant: int) -> str:
    return f"{mode}{variant}" if variant else mode


def raw_value(*closers: str) -> tuple[Channel, tuple[str, ...]]:
    """Return the channel and closers of a value that is typed by the tool's schema."""
    return Channel.VALUE, closers


def json_envelope_format(
    envelope: Envelope, wraps: Mapping[str, str], *, pad: str = "", lead: str = ""
) -> ToolFormat:
    """Calls as JSON between an opener and its closer ("" if the format has none)."""
    closers = {closer: Edge("text") for closer in wraps.values() if closer}
    # Without a closer, what follows a call may be text: only offered tools are further calls.
    again = "call" if closers else "again"
    modes = {
        "text": Mode(Channel.TEXT, on={opener: Edge("call", pad=pad) for opener in wraps}),
        "call": Mode(Channel.BODY, body=envelope, end=Edge("done", pad=pad)),
        "done": Mode(
            Channel.GAP,
            on=closers,
            tolerate=mirrored_closers(*wraps) | more_calls(again, "{", "["),
            otherwise=None if closers else Edge("text"),
        ),
        "more": next_call(again, "{", "["),
    }
    if not closers:
        modes["again"] = Mode(Channel.BODY, body=replace(envelope, bare=True), end=Edge("done"))
    unwrapped = json_without_opener("call", envelope) if closers else None
    return ToolFormat(modes=modes, orphans=tuple(closers), lead=lead, unwrapped=unwrapped)


def json_without_opener(mode: str, envelope: Envelope) -> UnwrappedCall:
    """Return how JSON calls start without their opener: alone they are ordinary JSON."""
    starts = (f'"{key}":{space}"' for key in envelope.name for space in (" ", ""))
    heads = [(start, '"') for start in starts] if envelope.name else [('"', '":')]
    lists = ("{", "[{") if not envelope.many else ("[{",)
    found = tuple((f"{bracket}{start}", end) for bracket in lists for start, end in heads)
    return UnwrappedCall(mode, found, needs_closer=True)


def more_calls(mode: str, *starts: str) -> dict[str, Edge]:
    """Return the edges behind a call to further calls in the same wrapper.

    With a comma, the format also needs the mode `more`, see `next_call`.
    """
    return {**{start: Edge(mode, peek=True) for start in starts}, ",": Edge("more")}


def next_call(mode: str, *starts: str) -> Mode:
    """Return the mode behind a comma between calls."""
    return Mode(Channel.GAP, on={start: Edge(mode, peek=True) for start in starts})


def mirrored_closers(*openers: str) -> dict[str, Edge]:
    """Return edges for the closing tags of these openers, as models write them for any opener."""
    found = (_TAG.fullmatch(opener) for opener in openers)
    return {f"{tag[1]}/{tag[2]}": Edge("text") for tag in found if tag}
