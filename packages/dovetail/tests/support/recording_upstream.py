"""A server in front of a recording upstream."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from http_fixture import NAME, Stage, serving
from upstream_environment import FakeRequest, FakeResponse, FakeUpstream, chunks, fake_upstream

from dovetail.engines.engine import RemoteModel
from dovetail.engines.openai import OpenAIOptions, OpenAIUpstream
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.seal import Sealer
from dovetail.pipeline.registry import ModelRegistry, UpstreamModel
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail_protocols import UpstreamApi

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "status": "completed",
    "output": [
        {
            "type": "reasoning",
            "id": "rs_1",
            "content": [{"type": "reasoning_text", "text": "Well."}],
        },
        {
            "type": "message",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "Hello."}],
        },
    ],
    "usage": {"input_tokens": 7, "output_tokens": 2},
}


def respond(request: FakeRequest) -> FakeResponse:
    """Respond with a text in the API of the request."""
    if request.path == "/v1/chat/completions":
        usage = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
        stream = chunks({"reasoning_content": "Well."}, {"content": "Hello."}, done=False) + usage
        return FakeResponse(body=stream + b"data: [DONE]\n\n", kind="text/event-stream")
    if request.path == "/v1/responses":
        frames = [
            {"type": "response.created", "response": RESPONSE | {"status": "in_progress"}},
            {"type": "response.output_item.done", "item": RESPONSE["output"][0]},
            {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hello."},
            {"type": "response.completed", "response": RESPONSE},
        ]
        body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames).encode()
        return FakeResponse(body=body, kind="text/event-stream")
    return FakeResponse(404)


@asynccontextmanager
async def relaying(
    upstream: UpstreamApi, **options: Any
) -> AsyncIterator[tuple[Stage, FakeUpstream]]:
    """Run a server in front of a recording upstream with this API."""
    options = {"api": upstream, "custom_tools": True, "reasoning_field": "none"} | options
    async with fake_upstream(respond) as fake:
        engine = OpenAIUpstream(
            fake.endpoint, RemoteModel(NAME), msgspec.convert(options, OpenAIOptions)
        )
        entry = UpstreamModel(
            names=(NAME,),
            engine=engine,
            normalizer=PromptNormalizer(NormalizationOptions()),
            sealer=Sealer(Keyring([bytes(32)])),
        )
        async with serving(registry=ModelRegistry([entry])) as stage:
            yield stage, fake
