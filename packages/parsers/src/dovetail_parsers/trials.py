"""Try calls without their opening wrapper, see `unwrapped`, and continue after the verdict."""

from collections import deque

from dovetail_model import Event
from dovetail_parsers.grammar import Channel
from dovetail_parsers.unwrapped import MAX_FAILED_CHARS, Piece, Trial, Verdict
from dovetail_parsers.value_ends import ValueMachine

#: What does not depend on the text: it stays when the state of a trial is taken over.
_OWN = frozenset({"_base", "_grammar", "_pending", "_special", "_trial", "_unwrapped_failures"})


class TrialMachine(ValueMachine):
    """Holds the text of possible calls, and takes over the state of the machine that read one."""

    __slots__ = ()

    @property
    def mode(self) -> str:
        return self._state.name

    @property
    def in_call(self) -> bool:
        return self._call.is_open or self._decoder is not None

    @property
    def holds_text(self) -> bool:
        return bool(self._held)

    def feed(self, text: str, special: bool | None = None) -> list[Event]:
        raise NotImplementedError

    def finish(self) -> list[Event]:
        raise NotImplementedError

    def _run(self, buffer: str, final: bool) -> None:
        raise NotImplementedError

    def _hold(self, buffer: str, at: int, final: bool) -> int:
        """Read the text of a possible call: the trial reads it after this run."""
        middle = max(at, self._boundary)
        parts = ((buffer[at:middle], self._plain_held), (buffer[middle:], self._plain))
        self._pending += [part for part in parts if part[0]]
        return len(buffer)

    def _resolve_trials(self) -> None:
        """Read the held text, until the verdict as a call, then as what it is."""
        pieces = deque(self._pending)
        self._pending.clear()
        while pieces:
            text, plain = pieces.popleft()
            if self._state.channel is not Channel.TRIAL:
                self._plain, self._boundary = plain, len(self._held)
                self._run(self._held + text, final=False)
                pieces.extendleft(reversed(self._pending))
                self._pending.clear()
                continue
            self._trial = self._trial or self._begin_trial()
            verdict, read = self._trial.feed(text, plain)
            if verdict is Verdict.CALL:
                self._adopt()
                if text[read:]:
                    pieces.appendleft((text[read:], plain))
            elif verdict is Verdict.TEXT:
                pieces.extendleft(reversed(self._abandon()))

    def _finish_trials(self) -> bool:
        """End the output. Return whether it ended in a call that lacked its opening wrapper."""
        while self._pending or self._trial is not None:
            self._resolve_trials()
            if self._trial is None:
                self._plain, self._boundary = self._plain_held, 0
                self._run(self._held, final=True)
            elif self._trial.finish() is Verdict.CALL:
                self._adopt()
                return True
            else:
                self._pending = self._abandon()
        return False

    def _begin_trial(self) -> Trial:
        assert self._grammar.tools is not None
        unwrapped = self._grammar.tools.unwrapped
        assert unwrapped is not None
        machine = type(self)(self._base, self._tools, False, self._special, unwrapped=False)
        machine._call.index = self._call.index
        machine._spans.raw.extend(self._spans.raw)
        machine._origin = machine._grammar.states["text"]
        machine._head_at = len(machine._spans.raw)
        machine._state = machine._grammar.states[unwrapped.mode]
        return Trial(machine, unwrapped.needs_closer)

    def _adopt(self) -> None:
        """Continue with the state of the trial's machine, which has read a call."""
        trial, self._trial = self._trial, None
        assert trial is not None
        self._spans.end()
        self._call.diagnose("missing_opener")
        events = self._spans.take_events() + trial.events
        for base in type(self).__mro__:
            for name in getattr(base, "__slots__", ()):
                if name not in _OWN:
                    setattr(self, name, getattr(trial.machine, name))
        self._spans.events = events
        self._state = self._grammar.states[self._state.name]
        if self._origin is not None:
            self._origin = self._grammar.states[self._origin.name]

    def _abandon(self) -> list[Piece]:
        """Return the text of a trial that was no call; its first characters are written as text."""
        trial, self._trial = self._trial, None
        assert trial is not None
        self._unwrapped_failures += trial.size
        if self._unwrapped_failures > MAX_FAILED_CHARS:
            self._grammar = self._base
        self._origin = None
        self._state = self._grammar.states["text"]
        pieces = trial.pieces
        rest = 2 if pieces[0][0][0] == "\n" else 1  # what follows does not start a line any more
        while rest:
            text, plain = pieces[0]
            self._spans.write("text", text[:rest])
            pieces[0] = text[rest:], plain
            rest -= min(rest, len(text))
            if not pieces[0][0]:
                del pieces[0]
        return pieces
