"""Special tokens inside the arguments of a call, if the caller distinguishes them from text."""

from dovetail_parsers.grammar import Channel, Edge
from dovetail_parsers.trials import TrialMachine


class SpecialTokenMachine(TrialMachine):
    """Ends a call whose JSON is broken at the special token that ends calls."""

    __slots__ = ()

    def _feed_special(self, text: str, special: bool | None) -> None:
        """Read a special token inside a body, or the text behind one.

        A token that may follow the body ends the call, although a JSON string is still open. If
        only certain tokens may follow it, the next piece must be one of them: otherwise the model
        has quoted the token, and it is data.
        """
        held, self._special_held = self._special_held, ""
        if held:
            target = self._grammar.states[self._edge_behind(held).mode]
            if special and text in target.edges:
                self._break_body()
            self._read(held)
        if special and not self._held and self._decoder is not None and self._may_end(text):
            target = self._grammar.states[self._edge_behind(text).mode]
            if target.channel is Channel.GAP and target.mode.otherwise is None:
                self._special_held = text
                return
            self._break_body()
        self._read(text)

    def _finish_special(self) -> None:
        """End the output behind a special token that may end the body: it does."""
        if self._special_held:
            held, self._special_held = self._special_held, ""
            self._break_body()
            self._held = held

    def _read(self, text: str) -> None:
        self._boundary = len(self._held)
        self._run(self._held + text, final=False)

    def _break_body(self) -> None:
        self._spans.raw.append(self._held)
        self._held = ""
        self._fail(0, "special_token_in_value")

    def _may_end(self, text: str) -> bool:
        mode = self._state.mode
        if mode.end is None or text not in self._special:
            return False
        return text in self._grammar.states[mode.end.mode].edges or text in mode.edges

    def _edge_behind(self, marker: str) -> Edge:
        mode = self._state.mode
        assert mode.end is not None
        behind = self._grammar.states[mode.end.mode].edges
        return behind.get(marker) or mode.edges[marker]
