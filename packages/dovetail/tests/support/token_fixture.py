"""The cost of one token on its way through the complete server, counted in calls.

The engine is a socket that sends one token on request of the test, in vLLM's frames; the client is
a socket too. Between them runs the real server. Calls of Python functions and of C functions by our
code and the HTTP server are counted.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from completions_fixture import MODEL
from http_fixture import NAME, serving, tiny_model

import dovetail
import dovetail_model
import dovetail_parsers
import dovetail_protocols
import dovetail_tokenizers
from dovetail.engines.engine import RemoteModel
from dovetail.engines.vllm.engine import VllmEngine, VllmOptions
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.net.http_client import Endpoint
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool

OURS = tuple(
    str(Path(module.__file__ or "").parent)
    for module in (
        dovetail,
        dovetail_model,
        dovetail_parsers,
        dovetail_protocols,
        dovetail_tokenizers,
        uvicorn,
    )
)
TOOL = {"type": "object", "properties": {"content": {"type": "string"}}}
MESSAGES = [{"role": "user", "content": "Go."}]
REQUEST_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": MESSAGES,
        "tools": [{"type": "function", "function": {"name": "write", "parameters": TOOL}}],
    },
    "/v1/messages": {
        "messages": MESSAGES,
        "max_tokens": 500_000,
        "tools": [{"name": "write", "input_schema": TOOL}],
    },
    "/v1/responses": {
        "input": "Go.",
        "tools": [{"type": "function", "name": "write", "parameters": TOOL}],
    },
}


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count the calls of our code while the block runs."""
    seen: Counter[str] = Counter()

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event not in ("call", "c_call") or not frame.f_code.co_filename.startswith(OURS):
            return
        code = frame.f_code
        name = code.co_qualname if event == "call" else f"  {code.co_qualname}: {arg!r}"
        seen[name.split(" at 0x")[0]] += 1

    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)


class Tap:
    """The connections of the engine and of the client: tokens go in at one and out at the other."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.engine: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        self.client: asyncio.StreamReader = asyncio.StreamReader()
        self._begun = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle a request as the engine: start the response, and wait for tokens."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r")[0] or 0))
        if "/v1/models" in head:
            body = json.dumps({"object": "list", "data": [{"id": MODEL}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            writer.close()
            return
        if "post /v1/completions" not in head:  # other APIs of vLLM, which are not offered
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        self.engine.set_result(writer)

    async def send_tokens(self, ids: Sequence[int]) -> bytes:
        """Send these tokens from the engine in one frame. Returns what the client received."""
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": None}
        choice |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": list(ids)}
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}
        frame = b"data: %b\n\n" % json.dumps({**head, "choices": [choice]}).encode()
        (await self.engine).write(b"%x\r\n%b\r\n" % (len(frame), frame))
        if not self._begun:
            self._begun = bool(await self.client.readuntil(b"\r\n\r\n"))
        size = int(await self.client.readuntil(b"\r\n"), 16)
        return (await self.client.readexactly(size + 2))[:-2]


@asynccontextmanager
async def tapped(path: str) -> AsyncIterator[Tap]:
    """Open a stream of the server at `path`."""
    tap = Tap()
    listener = await asyncio.start_server(tap.serve, "127.0.0.1", 0)
    model = tiny_model()
    endpoint = Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1])
    engine = VllmEngine(
        endpoint,
        RemoteModel(MODEL, context_length=1 << 20),
        model.tokenizer,
        options=VllmOptions(probe=False),
    )
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]))
    entry = TokenModel((NAME,), model, preparer, ReplicaPool([engine]), max_context=1 << 20)
    async with listener, serving(registry=ModelRegistry([entry], {})) as stage:
        body = json.dumps({"model": NAME, "stream": True, **REQUEST_BODIES[path]}).encode()
        tap.client, writer = await stage.connect()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        try:
            yield tap
        finally:
            writer.close()
            (await tap.engine).close()
