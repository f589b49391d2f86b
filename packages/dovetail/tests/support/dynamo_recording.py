"""Recorded responses of Dynamo's frontend 1.6.1, and a server that sends them.

`killed`, `not ready`, `no models` and `gone` were recorded in this order after the only worker was
killed; `migrated` after one of two was, without its field `worker_id`. `stopped` comes from a
worker with scripted output. `overloaded` was copied from the output of another run.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from completions_fixture import fake_server

from dovetail.net.http_client import Endpoint

RECORDING = Path(__file__).parent / "recordings" / "dynamo_frontend.jsonl"
NAME = "mock/qwen3"
PROMPT_TOKENS = 40
_PATHS = {"/v1/models": "models", "/health": "health", "/v1/completions": "plain"}


class RecordedResponse(msgspec.Struct, frozen=True):
    name: str
    status: int
    response: str

    def to_bytes(self) -> bytes:
        """Return the response as it is sent."""
        head = b"HTTP/1.1 %d X\r\nConnection: close\r\n\r\n" % self.status
        return head + self.response.encode()


def load_responses() -> dict[str, RecordedResponse]:
    """Return the responses by their names."""
    _, *lines = RECORDING.read_bytes().splitlines()
    found = [msgspec.json.decode(line, type=RecordedResponse) for line in lines]
    return {one.name: one for one in found}


RESPONSES = load_responses()


class RecordedFrontend:
    """A frontend that responds as recorded.

    `names`: the recorded response of each path, which tests can change.
    `queue`: responses to the next completions, before that of `names`.
    `requests`: the bodies of all completions.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.names = {**_PATHS, **(names or {})}
        self.queue: list[str] = []
        self.requests: list[Any] = []

    async def respond(self, path: str, body: bytes) -> list[bytes]:
        name = self.names.get(path, "unknown model")
        if path == "/v1/completions":
            self.requests.append(msgspec.json.decode(body))
            name = self.queue.pop(0) if self.queue else name
        return [RESPONSES[name].to_bytes()]


@asynccontextmanager
async def recorded(frontend: RecordedFrontend) -> AsyncIterator[Endpoint]:
    """Run the frontend during the block."""
    async with fake_server(frontend.respond) as endpoint:
        yield endpoint
