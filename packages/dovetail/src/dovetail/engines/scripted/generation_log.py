"""What the scripted engine was asked and what it said, in a file that others read while it runs."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dovetail.engines.engine import EngineRequest
from dovetail_tokenizers import Tokenizer


class RecordedGeneration(msgspec.Struct, frozen=True):
    """A request and its answer, as tokens and as text; `output` is what had left of it.

    `began` is the time at which the request came, in seconds as clocks on the wall count them.
    """

    began: float
    prompt: tuple[int, ...]
    cached: int
    output: tuple[int, ...]
    session: str | None = None
    text: str = ""
    said: str = ""


class GenerationLog:
    """Writes a line of JSON for each request, when the last of its answer has left."""

    __slots__ = ("_path", "_tokenizer")

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self._path = path
        self._tokenizer = tokenizer
        path.touch(0o600)  # to tell now, and not at the first request, that it cannot be written

    def add(
        self, started: float, request: EngineRequest, cached: int, output: Sequence[int]
    ) -> None:
        """One write a request, so that a reader never meets half a line."""
        prompt = tuple(request.prompt)
        said = self._tokenizer.decode(output)
        text = self._tokenizer.decode(prompt)
        heard = RecordedGeneration(
            started, prompt, cached, tuple(output), request.session, text, said
        )
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(heard) + b"\n")


def read_generation_log(path: Path) -> list[RecordedGeneration]:
    """All that was heard so far, in the order in which the answers ended."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=RecordedGeneration) for line in lines]
