"""The prefix doctor: what a prompt shares with the last one of its session, and why not more.

A harness sends more than one line of prompts under one session id: titles, summaries, forks. So a
few lines are kept for each session, and a prompt is compared with the one it shares most with.
Tokens are compared as bytes, a block at a time. What is kept is bounded by bytes; the session that
was heard of longest ago goes first.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from dovetail.prompt.diagnosis import Diagnosis, Part, Reason
from dovetail.prompt.prefix import common_bytes

_LINES = 16  # kept of one session: an agent with its sub-agents
_OTHERS = 8  # sessions that a first prompt is compared with
_AROUND = 24  # tokens of text shown on each side of a divergence
_WIDTH = array("I").itemsize
_DIGEST = 64  # bytes that the digest of a turn takes up
_OVERHEAD = 1024  # of a line, besides its tokens and digests

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Sighting:
    """What is known of a prompt.

    `session` and `harness` are compared as they are: where tenants must not be set beside each
    other, both have to name the tenant. `system`, `tools` and `switches` are digests of the
    head's parts, `turns` those of the visible turns in canonical order. `policy_dropped` says
    that the template dropped thoughts here, `deliberate` that a resume policy cleared them.
    """

    session: str | None
    harness: str
    ids: "array[int]"
    system: bytes = b""
    tools: bytes = b""
    switches: bytes = b""
    turns: tuple[bytes, ...] = ()
    reused: int = 0
    policy_dropped: bool = False
    deliberate: bool = False


class _Line:
    """The last prompt of one line of a session, with what was generated on it.

    It grows in place: a prompt that goes on from it costs a comparison and what is new.
    """

    __slots__ = ("_digests", "_prompt", "harness", "switches", "system", "tools", "turns", "whole")

    def __init__(self, seen: Sighting) -> None:
        self.whole = bytearray()
        self.go_on(seen, 0)

    @property
    def size(self) -> int:
        return len(self.whole) + len(self.turns) * _DIGEST + _OVERHEAD

    def go_on(self, seen: Sighting, common: int) -> None:
        """The prompt is the line's last from now on. It shares this many tokens with it."""
        self.harness = seen.harness
        self.system, self.tools, self.switches = seen.system, seen.tools, seen.switches
        self.turns = self._digests = seen.turns
        del self.whole[common * _WIDTH :]
        self.whole += _packed(seen)[common * _WIDTH :]
        self._prompt = len(self.whole)

    def is_of(self, seen: Sighting) -> bool:
        """Whether this is the prompt that the line ends in."""
        own = (self._prompt // _WIDTH, self._digests, self.system, self.tools)
        return own == (len(seen.ids), seen.turns, seen.system, seen.tools)

    def say(self, ids: bytes, turn: bytes | None) -> None:
        self.whole[self._prompt :] = ids
        self.turns = self._digests if turn is None else (*self._digests, turn)

    def differs(self, seen: Sighting) -> Part | None:
        """The part that is not the same. None where the prompt goes on from this line."""
        if self.system != seen.system:
            return "header"
        if self.tools != seen.tools:
            return "tools"
        if self.switches != seen.switches:
            return "switches"
        return None if self.turns == seen.turns[: len(self.turns)] else "history"

    def is_stranger(self, seen: Sighting) -> bool:
        """Whether the prompt has nothing to do with this line: a title request beside a session.

        A conversation whose head changed all over is still itself: its turns go on.
        """
        if self.system == seen.system or self.tools == seen.tools:
            return False
        return len(self.turns) < 2 or self.turns[:2] != seen.turns[:2]


class Doctor:
    """Remembers prompts and says what became of their prefix. `decode` makes text of ids."""

    __slots__ = ("_decode", "_max_bytes", "_nameless", "_sessions", "_size")

    def __init__(self, *, max_bytes: int = 64 << 20, decode: Decode) -> None:
        self._max_bytes = max_bytes
        self._decode = decode
        self._sessions: OrderedDict[str, list[_Line]] = OrderedDict()  # the newest last
        self._size = 0
        self._nameless = 0

    def examine(self, sighting: Sighting) -> Diagnosis:
        """The prompt beside the last one of its session. It is the last one from now on."""
        line, common = self._nearest(self._lines(sighting), sighting)
        found = self._first(sighting) if line is None else self._compare(line, sighting, common)
        forked = found.reason in ("header", "tools", "switches", "history")
        self._remember(sighting, None if forked else line, common)
        return found

    def generated(
        self,
        session: str | None,
        ids: Sequence[int],
        *,
        turn: bytes | None = None,
        prompt: Sighting | None = None,
    ) -> None:
        """What the model said then, without the token that ended it.

        `turn` is the digest of that turn as the client was shown it: with it an edited answer is
        told from one that was tokenized anew. `prompt` is the one it answers, the session's last
        if not given.
        """
        lines = reversed(self._sessions.get(session, ())) if session is not None else ()
        line = next((one for one in lines if prompt is None or one.is_of(prompt)), None)
        if line is None:  # forgotten already
            return
        self._size -= line.size
        line.say(array("I", ids).tobytes(), turn)
        self._size += line.size
        self._shrink()

    def _compare(self, line: _Line, seen: Sighting, common: int) -> Diagnosis:
        total, length = len(seen.ids), len(line.whole) // _WIDTH
        if common in (total, length):
            return Diagnosis(common, total, total - common, length - common, reused=seen.reused)
        before, was, now = self._texts(line, seen, common)
        reason = _reason(line, seen)
        return Diagnosis(
            common,
            total,
            again=total - common,
            lost=length - common,
            reason=reason,
            at=common,
            turn=_turn(line.turns, seen.turns) if reason == "history" else None,
            before=before,
            was=was,
            now=now,
            reused=seen.reused,
        )

    def _first(self, seen: Sighting) -> Diagnosis:
        """A prompt without a past: what it shares with other sessions of the harness."""
        total = len(seen.ids)
        if seen.reused:  # the ledger knows its past, which was forgotten here
            reason: Reason | None = "policy" if seen.policy_dropped else None
            again = total - seen.reused
            return Diagnosis(seen.reused, total, again, reason=reason, reused=seen.reused)
        line, shared = self._nearest(self._others(seen), seen)
        if line is None:
            return Diagnosis(0, total, total, reason="first", reused=seen.reused)
        diverged = shared not in (total, len(line.whole) // _WIDTH)
        before, was, now = self._texts(line, seen, shared) if diverged else ("", "", "")
        return Diagnosis(
            0,
            total,
            again=total,
            reason="first",
            at=shared if diverged else None,
            before=before,
            was=was,
            now=now,
            shared=shared,
            shared_differs=line.differs(seen) if diverged else None,
            reused=seen.reused,
        )

    def _nearest(self, lines: Iterable[_Line], seen: Sighting) -> tuple[_Line | None, int]:
        """The line that shares most, the first of equals, and how many tokens it shares."""
        best, most, whole = None, -1, _packed(seen)
        for line in lines:
            common = common_bytes(line.whole, whole) // _WIDTH
            if common > most:
                best, most = line, common
        return best, most

    def _lines(self, seen: Sighting) -> Iterator[_Line]:
        """The lines of its session that it may go on from, the newest first."""
        lines = self._sessions.get(seen.session, ()) if seen.session is not None else ()
        return (line for line in reversed(lines) if not line.is_stranger(seen))

    def _others(self, seen: Sighting) -> Iterator[_Line]:
        """The newest line of recent sessions of the same harness."""
        newest = (
            lines[-1]
            for session, lines in islice(reversed(self._sessions.items()), 8 * _OTHERS)
            if session != seen.session
        )
        return islice((line for line in newest if line.harness == seen.harness), _OTHERS)

    def _texts(self, line: _Line, seen: Sighting, at: int) -> tuple[str, str, str]:
        """Text before the divergence, and behind it as it was and as it is."""
        was = array("I")
        was.frombytes(line.whole[at * _WIDTH : (at + _AROUND) * _WIDTH])
        runs = (seen.ids[max(0, at - _AROUND) : at], was, seen.ids[at : at + _AROUND])
        before, old, new = (self._decode(run.tolist()) for run in runs)
        return before, old, new

    def _remember(self, seen: Sighting, line: _Line | None, common: int) -> None:
        """Keeps the prompt, in the line that it goes on from or in one of its own."""
        session = seen.session
        if session is None:  # a name that no client can send
            self._nameless += 1
            session = f"\0{self._nameless}"
        lines = [one for one in self._sessions.pop(session, ()) if one is not line]
        if line is None:
            line = _Line(seen)
        else:
            self._size -= line.size
            line.go_on(seen, common)
        lines.append(line)
        self._sessions[session] = lines[-_LINES:]
        self._size += line.size - sum(one.size for one in lines[:-_LINES])
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._max_bytes:
            _, lines = self._sessions.popitem(last=False)
            self._size -= sum(line.size for line in lines)


def _packed(seen: Sighting) -> memoryview:
    return memoryview(seen.ids).cast("B")


def _reason(line: _Line, seen: Sighting) -> Reason:
    part = line.differs(seen)
    if seen.deliberate and part in (None, "switches"):
        return "resume"
    if part is not None:
        return part
    return "policy" if seen.policy_dropped else "retokenization"


def _turn(old: tuple[bytes, ...], new: tuple[bytes, ...]) -> int:
    """The first turn that is not the same, or not there."""
    same = (at for at, (was, now) in enumerate(zip(old, new, strict=False)) if was != now)
    return next(same, min(len(old), len(new)))
