"""Golden transcripts: a list of events, a request for each API, and the expected bytes.

A folder of `transcripts/` contains `events.jsonl` (the model's output as events) and, for each API
that the case applies to, `API.request.json`, `API.sse` and `API.json`. Only `make golden` rewrites
the last two, and they are reviewed. `ID_x` in the events is a placeholder for a public call id.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dovetail_model import CallOpen, Event, Failure, Message, Request, fold
from dovetail_protocols import CHAT, MESSAGES, RESPONSES, Codec

FOLDER = Path(__file__).parents[1] / "transcripts"
CODECS: dict[str, Codec] = {"messages": MESSAGES, "responses": RESPONSES, "chat": CHAT}
TIME = 1_760_000_000.0


class CountingIds:
    """Ids that are the same in every run: the prefix and a number."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count:04d}"


def clock() -> float:
    return TIME


class Transcript:
    """One case, for one API."""

    def __init__(self, folder: Path, api: str) -> None:
        self.id = f"{folder.name}-{api}"
        self.folder = folder
        self.api = api
        self.codec = CODECS[api]

    @property
    def body(self) -> bytes:
        return (self.folder / f"{self.api}.request.json").read_bytes()

    def request(self) -> Request:
        return self.codec.decode(self.body, {})

    def events(self) -> list[Event]:
        lines = (self.folder / "events.jsonl").read_bytes().splitlines()
        decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
        return [self._named(decoder.decode(line)) for line in lines]

    def _named(self, event: Event) -> Event:
        """Replace call ids by ids in the API's own style."""
        if isinstance(event, CallOpen) and event.id is not None:
            public_id = event.id.replace("ID_", self.codec.call_id_prefix)
            return msgspec.structs.replace(event, id=public_id)
        return event

    def message(self) -> Message:
        return fold(self.events())

    def failure(self) -> Failure | None:
        return self.message().failure

    def stream(self) -> bytes:
        """Encode one event at a time, as from a slow model."""
        encoder = self.codec.stream(self.request(), CountingIds(), clock)
        return b"".join(encoder.encode([event]) for event in self.events())

    def stream_at_once(self) -> bytes:
        return self.codec.stream(self.request(), CountingIds(), clock).encode(self.events())

    def whole(self) -> bytes:
        message = self.message()
        return self.codec.encode_message(self.request(), [message], CountingIds(), clock)

    def write(self) -> None:
        (self.folder / f"{self.api}.sse").write_bytes(self.stream())
        if self.failure() is None:
            pretty = msgspec.json.format(self.whole(), indent=2)
            (self.folder / f"{self.api}.json").write_bytes(pretty + b"\n")


def transcripts() -> Iterator[Transcript]:
    for folder in sorted(FOLDER.iterdir()):
        for api in CODECS:
            if (folder / f"{api}.request.json").exists():
                yield Transcript(folder, api)


def main() -> None:
    options = argparse.ArgumentParser(description="Rewrite the golden transcripts.")
    options.add_argument("--api", choices=sorted(CODECS))
    chosen = options.parse_args().api
    for transcript in transcripts():
        if chosen in (None, transcript.api):
            transcript.write()


if __name__ == "__main__":
    main()
