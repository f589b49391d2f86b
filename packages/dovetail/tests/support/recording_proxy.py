"""A proxy in front of an engine's server that records the ids the engine reports."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from dovetail.net.client_connection import SseDataReader
from dovetail.net.response_parser import ResponseParser


@dataclass
class Recorded:
    """One completion. `prompt` and `generated` are the ids that the engine reports."""

    request: dict[str, Any]
    prompt: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    cached: int | None = None
    finish: str | None = None


class Recorder:
    """Listens on its own port. `completions` are in the order of their requests."""

    def __init__(self, upstream: int) -> None:
        self.completions: list[Recorded] = []
        self._upstream = upstream
        self._place = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._place.getsockname()[1]}"

    def __enter__(self) -> "Recorder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(_end(asyncio.all_tasks(self._loop)))
        self._loop.close()
        self._place.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._place))
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back: asyncio.StreamWriter | None = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
            body = await reader.readexactly(int(length or 0))
            record = None
            if b" /v1/completions " in head:
                record = Recorded(json.loads(body))
                self.completions.append(record)
            response, back = await asyncio.open_connection("127.0.0.1", self._upstream)
            back.write(head + body)
            disconnect_task = asyncio.ensure_future(_closed(reader, back))
            await _pass(response, writer, record)
            disconnect_task.cancel()
        except (OSError, asyncio.IncompleteReadError):
            pass  # either side disconnected
        finally:
            writer.close()
            if back is not None:
                back.close()


async def _end(tasks: "set[asyncio.Task[Any]]") -> None:
    """Cancel running requests, and let their connections close."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(3):
        await asyncio.sleep(0)


async def _closed(reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
    """When the client disconnects, disconnect from the server, too."""
    with suppress(OSError):
        await reader.read()
    back.transport.abort()


async def _pass(
    response: asyncio.StreamReader, writer: asyncio.StreamWriter, record: Recorded | None
) -> None:
    incoming, events = ResponseParser(), SseDataReader()
    while data := await response.read(65536):
        if record is not None:  # before forwarding: the client may read it
            for payload in events.feed(incoming.feed(data)):
                _add_payload(record, payload)
        writer.write(data)
        await writer.drain()


def _add_payload(record: Recorded, payload: bytes) -> None:
    frame = json.loads(payload) if payload != b"[DONE]" else {}
    for choice in frame.get("choices", ()):
        record.prompt += choice["prompt_token_ids"] or []
        record.generated += choice["token_ids"]
        record.logprobs += (choice.get("logprobs") or {}).get("token_logprobs", ())
        record.finish = choice["finish_reason"] or record.finish
    details = (frame.get("usage") or {}).get("prompt_tokens_details")
    if details is not None:
        record.cached = details["cached_tokens"]


@contextmanager
def recording(port: int) -> Iterator[Recorder]:
    """Run a recorder in front of the server on a local port."""
    with Recorder(port) as recorder:
        yield recorder
