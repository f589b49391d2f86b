"""Real servers for the scenarios: `dovetail serve` in front of an engine in another process."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from http_fixture import Reply, read_reply
from server_process import NAME, Running, qwen_folder, served

RESPONSE_TIMEOUT_SECONDS = 60.0
SUPPORT = Path(__file__).resolve().parents[3] / "packages" / "dovetail" / "tests" / "support"
SMALL_CACHES = (str(SUPPORT / "soak_server.py"),)
GENERATION_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 999},
    "/v1/responses": {"input": "Hi"},
}
#: The events that end a stream, by path. The last ones report an error.
STREAM_ENDS: dict[str, tuple[bytes, ...]] = {
    "/v1/chat/completions": (b"data: [DONE]", b'"error":{'),
    "/v1/messages": (b"event: message_stop", b"event: error"),
    "/v1/responses": (
        b"event: response.completed",
        b"event: response.incomplete",
        b"event: response.failed",
        b"event: error",
    ),
}


@contextmanager
def scripted_engine(
    model: Path, text: str, rate: float = 0.0, max_model_len: int = 40960
) -> Iterator[str]:
    """Run an engine that always generates `text`, `rate` tokens per second; yield its URL."""
    script = model.parent / "script.yaml"
    script.write_text(json.dumps([{"text": text}]))
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--script", str(script)]
    command += ["--model", str(model), "--served-model-name", NAME, "--port", "0"]
    command += ["--decode-rate", str(rate), "--max-model-len", str(max_model_len)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        try:
            yield engine.stdout.readline().split()[-1]
        finally:
            engine.terminate()


@contextmanager
def model_folder(max_model_len: int = 40960) -> Iterator[Path]:
    with TemporaryDirectory(prefix="dovetail-model-") as scratch:
        folder = qwen_folder(Path(scratch) / "model")
        config = json.loads((folder / "config.json").read_text())
        config["max_position_embeddings"] = max_model_len
        (folder / "config.json").write_text(json.dumps(config))
        yield folder


@contextmanager
def serving(
    text: str,
    *arguments: str | Path,
    rate: float = 0.0,
    max_model_len: int = 40960,
    program: tuple[str, ...] = ("-m", "dovetail"),
) -> Iterator[Running]:
    """Run a server whose engine always generates `text`."""
    flags = ("--engine", "vllm", "--engine-url")
    with (
        model_folder(max_model_len) as model,
        scripted_engine(model, text, rate, max_model_len) as url,
        served(*flags, url, "--tokenizer", model, *arguments, program=program) as one,
    ):
        yield one


async def connect(running: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(running.url)
    return await asyncio.open_connection(address.hostname, address.port, limit=1 << 24)


def raw_request(path: str, body: bytes, method: str = "POST", headers: bytes = b"") -> bytes:
    head = b"%b %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n" % (
        method.encode(),
        path.encode(),
    )
    length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return head + headers + length + body


async def post(running: Running, path: str, body: bytes | dict[str, Any]) -> Reply:
    """Send a request over its own connection and read the complete response."""
    sent = body if isinstance(body, bytes) else json.dumps({"model": NAME, **body}).encode()
    reader, writer = await connect(running)
    try:
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            writer.write(raw_request(path, sent))
            return await read_reply(reader, "POST")
    finally:
        writer.close()


def is_api_error(reply: Reply) -> bool:
    """Return whether a response is an error object of one of the APIs, in JSON."""
    if not reply.headers.get("content-type", "").startswith("application/json"):
        return False
    error = json.loads(reply.body).get("error")
    return isinstance(error, dict) and bool(error.get("type")) and bool(error.get("message"))


def is_complete(path: str, reply: Reply) -> bool:
    """Return whether a response ends properly: with its last event, as JSON, or as an error."""
    if reply.status != 200:
        return is_api_error(reply)
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        return any(end in reply.body for end in STREAM_ENDS[path])
    return isinstance(json.loads(reply.body), dict)
