"""A worker for Dynamo's frontend that has no model: a scripted engine answers for it.

It takes token ids and gives token ids, as Dynamo's own workers do, and asks a process of
`python -m dovetail.engines.scripted` for them. It runs in the interpreter that has Dynamo, where
nothing of Dovetail is installed.
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

LONGEST_LINE = 1 << 26


async def serve_model(given: argparse.Namespace) -> None:
    async def generate(request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        engine = Engine(given.engine, given.context_length, context)
        async for choice in answer(engine, request):
            yield choice

    await serve(given, generate)


@dataclass(frozen=True)
class Engine:
    """Where the engine listens, the window of its model, and who may call a request off."""

    port: int
    window: int
    context: Any


async def answer(engine: Engine, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """All choices that a request wants, one after the other."""
    wants = (request.get("sampling_options") or {}).get("n") or 1
    for index in range(wants):
        async for choice in one_choice(engine, wanted(request, engine.window)):
            yield {"index": index, **choice}


async def one_choice(engine: Engine, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The engine's answer. The last of it waits for the counts, which come behind it."""
    last: dict[str, Any] = {}
    async for chunk in ask(engine, body):
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
    """What the engine tells of each token's probability, in the words of Dynamo's workers."""
    told = choice["logprobs"]
    if told is None:
        return {}
    named = zip(choice["token_ids"], told["tokens"], told["token_logprobs"], strict=True)
    top = [[{"rank": 1, "token_id": id, "token": t, "logprob": p}] for id, t, p in named]
    return {"log_probs": told["token_logprobs"], "top_logprobs": top}


def wanted(request: dict[str, Any], room: int) -> dict[str, Any]:
    """Dynamo's request as one of the completions protocol."""
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


async def ask(engine: Engine, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream. The engine puts whole events into a chunk of the transfer, so that
    lines can be read without looking at how it is cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port, limit=LONGEST_LINE)
    payload = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    watch = asyncio.create_task(hang_up(engine.context, writer))
    try:
        async for line in reader:
            if line.startswith(b'{"error"'):
                yield json.loads(line)
            elif line.startswith(b"data: {"):
                yield json.loads(line[6:])
    finally:
        watch.cancel()
        writer.close()


async def hang_up(context: Any, writer: asyncio.StreamWriter) -> None:
    """Lets the engine know that nobody waits for its answer any more."""
    await context.async_killed_or_stopped()
    writer.close()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--engine", type=int, required=True, help="port of the scripted engine")
    uvloop.run(serve_model(parser.parse_args()))


if __name__ == "__main__":
    main()
