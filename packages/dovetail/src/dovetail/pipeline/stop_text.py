"""Stop sequences of a client: text that ends the answer and is not part of it."""

import re
from collections.abc import Sequence

from dovetail_model import InvalidRequest

MAX_STOP_SEQUENCE_CHARS = (
    1024  # characters of one sequence: its beginnings are kept, which grow by the square
)
MAX_STOP_TOTAL_CHARS = 16 << 10  # characters of all of them together


class StopSequenceMatcher:
    """Lets text through up to the first stop sequence; holds back what may become one."""

    __slots__ = ("_held", "_longest", "_pattern", "_prefixes", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        kept = sorted(set(filter(None, stops)), key=len, reverse=True)
        if kept and (
            len(kept[0]) > MAX_STOP_SEQUENCE_CHARS or sum(map(len, kept)) > MAX_STOP_TOTAL_CHARS
        ):
            raise InvalidRequest(
                f"stop sequences: at most {MAX_STOP_SEQUENCE_CHARS} characters each, {MAX_STOP_TOTAL_CHARS} together",
                param="stop",
            )
        self._pattern = re.compile("|".join(map(re.escape, kept)))
        self._prefixes = {stop[:size] for stop in kept for size in range(1, len(stop))}
        self._longest = max(map(len, kept), default=1) - 1
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that surely belongs to the answer. Nothing comes behind a stop sequence."""
        if self.found is not None:
            return ""
        text = self._held + text
        match = self._pattern.search(text)
        if match is not None:
            self.found, self._held = match[0], ""
            return text[: match.start()]
        held = self._partial_match_length(text)
        self._held = text[len(text) - held :] if held else ""
        return text[: len(text) - held] if held else text

    def finish(self) -> str:
        """What was held back after all."""
        held, self._held = self._held, ""
        return held

    def _partial_match_length(self, text: str) -> int:
        """The length of the longest end of the text that begins a stop sequence."""
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._prefixes:
                return size
        return 0
