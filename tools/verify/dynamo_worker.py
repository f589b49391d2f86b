"""A worker for Dynamo's frontend that forwards requests to a scripted engine.

Like Dynamo's own workers it receives and returns token ids. The engine is a process of
`python -m dovetail.engines.scripted`. The worker runs in the interpreter that has Dynamo installed,
which has no Dovetail.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from dynamo.llm.exceptions import InvalidArgument  # type: ignore[import-not-found]

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.dynamo_registration import arguments, serve

MAX_LINE_BYTES = 1 << 26


async def serve_model(given: argparse.Namespace) -> None:
    async def generate(request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        engine = Engine(given.engine, given.context_length, context)
        async for choice in generate_choices(engine, request):
            yield choice

    await serve(given, generate)


@dataclass(frozen=True)
class Engine:
    """The port of the engine, the context length of its model, and the context of a request."""

    port: int
    window: int
    context: Any


async def generate_choices(
    engine: Engine, request: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Generate all choices of a request in sequence."""
    wants = (request.get("sampling_options") or {}).get("n") or 1
    for index in range(wants):
        async for choice in generate_choice(engine, completion_request(request, engine.window)):
            yield {"index": index, **choice}


async def generate_choice(engine: Engine, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Stream one choice. The last chunk is held back until the usage arrives after it."""
    last: dict[str, Any] = {}
    async for chunk in stream_completion(engine, body):
        if "error" in chunk:
            fault = chunk["error"]
            if fault["code"] < 500:
                raise InvalidArgument(fault["message"])
            yield {"token_ids": [], "finish_reason": f"error: {fault['message']}"}
            return
        for choice in chunk["choices"]:
            last = {"token_ids": choice["token_ids"], **probabilities(choice)}
            if choice["finish_reason"] is None:
                yield last
            else:
                last["finish_reason"] = choice["finish_reason"]
        if not chunk["choices"]:
            yield {**last, "completion_usage": chunk["usage"]}


def probabilities(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the logprobs of the engine in the format of Dynamo's workers."""
    logprobs = choice["logprobs"]
    if logprobs is None:
        return {}
    named = zip(choice["token_ids"], logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    top = [[{"rank": 1, "token_id": id, "token": t, "logprob": p}] for id, t, p in named]
    return {"log_probs": logprobs["token_logprobs"], "top_logprobs": top}


def completion_request(request: dict[str, Any], room: int) -> dict[str, Any]:
    """Convert a request of Dynamo to a request of the completions API."""
    stop = request.get("stop_conditions") or {}
    prompt = request["token_ids"]
    return {
        "prompt": prompt,
        "max_tokens": stop.get("max_tokens") or room - len(prompt),
        "stop_token_ids": stop.get("stop_token_ids_hidden") or [],
        "logprobs": (request.get("output_options") or {}).get("logprobs"),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


async def stream_completion(engine: Engine, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a stream.

    The engine sends complete events in each transfer chunk, so lines can be read without decoding
    the chunks.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port, limit=MAX_LINE_BYTES)
    payload = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    disconnect_task = asyncio.create_task(close_when_cancelled(engine.context, writer))
    try:
        async for line in reader:
            if line.startswith(b'{"error"'):
                yield json.loads(line)
            elif line.startswith(b"data: {"):
                yield json.loads(line[6:])
    finally:
        disconnect_task.cancel()
        writer.close()


async def close_when_cancelled(context: Any, writer: asyncio.StreamWriter) -> None:
    """Close the connection when the request is cancelled."""
    await context.async_killed_or_stopped()
    writer.close()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--engine", type=int, required=True, help="port of the scripted engine")
    uvloop.run(serve_model(parser.parse_args()))


if __name__ == "__main__":
    main()
