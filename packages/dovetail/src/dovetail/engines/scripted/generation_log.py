"""A file with the requests and outputs of the scripted engine, which is readable while it runs."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dovetail.engines.engine import EngineRequest
from dovetail_tokenizers import Tokenizer


class RecordedGeneration(msgspec.Struct, frozen=True):
    """A request and its output, as tokens and as text. `output` is what had been sent.

    `began` is the time at which the request arrived, as Unix time. The encoded field names are the
    format of the file.
    """

    began: float
    prompt: tuple[int, ...]
    cached: int
    output: tuple[int, ...]
    session: str | None = None
    text: str = ""
    output_text: str = msgspec.field(default="", name="said")


class GenerationLog:
    """Writes a line of JSON for each request, when its output has ended."""

    __slots__ = ("_path", "_tokenizer")

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self._path = path
        self._tokenizer = tokenizer
        path.touch(0o600)  # fails now, and not at the first request, if it cannot be written

    def add(
        self, started: float, request: EngineRequest, cached: int, output: Sequence[int]
    ) -> None:
        """Write in one call, so that a reader never sees half a line."""
        prompt = tuple(request.prompt)
        output_text = self._tokenizer.decode(output)
        text = self._tokenizer.decode(prompt)
        recorded = RecordedGeneration(
            started, prompt, cached, tuple(output), request.session, text, output_text
        )
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(recorded) + b"\n")


def read_generation_log(path: Path) -> list[RecordedGeneration]:
    """All recorded generations, in the order in which they ended."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=RecordedGeneration) for line in lines]
