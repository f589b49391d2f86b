"""Register a worker of ours with Dynamo's frontend.

Scripts import it in the interpreter that has Dynamo, where Dovetail is not installed.
"""

import argparse
from collections.abc import AsyncIterator, Callable
from typing import Any

from dynamo.common.utils.runtime import create_runtime  # type: ignore[import-not-found]
from dynamo.llm import (  # type: ignore[import-not-found]
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    register_model,
)

PLANES = ("file", "tcp", "zmq")
Generate = Callable[[dict[str, Any], Any], AsyncIterator[Any]]


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every worker: the model, its name and parsers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="folder with the tokenizer and template")
    parser.add_argument("--name", required=True)
    parser.add_argument("--context-length", type=int, default=40960)
    parser.add_argument("--tool-call-parser", required=True)
    parser.add_argument("--reasoning-parser", required=True)
    return parser


async def serve(given: argparse.Namespace, generate: Generate) -> None:
    """Register the model and serve requests until the process is stopped."""
    runtime, _ = create_runtime(*PLANES)
    endpoint = runtime.endpoint("dovetail.backend.generate")
    config = ModelRuntimeConfig()
    config.context_length = given.context_length
    config.tool_call_parser = given.tool_call_parser
    config.reasoning_parser = given.reasoning_parser
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat | ModelType.Completions,
        endpoint,
        given.model,
        given.name,
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=16,
        runtime_config=config,
        ignore_weights=True,
    )
    await endpoint.serve_endpoint(generate)
