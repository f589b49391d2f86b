"""The render endpoints: the exact prompt of a request, and the hashes of its blocks.

The request is decoded and rendered as for a response, but it is not sent to an engine, not
recorded, and has no effect on its session.
"""

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.http.exchange import ApiExchange
from dovetail.http.options import HttpOptions
from dovetail.http.request_decoder import RequestDecoder
from dovetail.http.routes import Route
from dovetail.http.tracker import RequestTracker
from dovetail.pipeline.concurrency import run_in_thread
from dovetail.pipeline.execution import render_prompt, require_token_model
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.pipeline.session_keys import cache_salt
from dovetail.routing.block_hashes import (
    DEFAULT_DYNAMO_SEED,
    DEFAULT_VLLM_SEED,
    VLLM_ALGORITHMS,
    hash_dynamo_blocks,
    hash_vllm_blocks,
    to_event_hash,
)
from dovetail_model import InvalidRequest, Request, Unsupported
from dovetail_protocols import Codec

RENDER_SUFFIX = "/render"
DYNAMO_ALGORITHM, VLLM_PREFIX = "dynamo", "vllm-"
#: The values of `block_hashes`.
ALGORITHMS = (DYNAMO_ALGORITHM, *(f"{VLLM_PREFIX}{name}" for name in VLLM_ALGORITHMS))
DEFAULT_BLOCK_SIZE = 16  # of vLLM on GPUs and of Dynamo
MAX_BLOCK_SIZE = 99_999
_MAX_SEED = (1 << 64) - 1
_MAX_SEED_CHARS = 256


class BlockHashOptions(msgspec.Struct, frozen=True):
    """How the hashes of a prompt are computed.

    `seed`: a number for Dynamo; the value of PYTHONHASHSEED for vLLM.
    """

    algorithm: str
    seed: int | str
    block_size: int


class RenderEndpoints:
    """Return the prompts of requests of all APIs."""

    def __init__(self, service: ModelRegistry, options: HttpOptions) -> None:
        self._service = service
        self._decoder = RequestDecoder(service, options)

    def route(self, path: str, codec: Codec) -> Route:
        """Return the route that renders the requests of an endpoint."""

        async def handle(exchange: ApiExchange, tracker: RequestTracker) -> None:
            await self._render(exchange, codec)

        summary = "Return the token ids of the prompt of a request, and their block hashes"
        return Route("POST", path + RENDER_SUFFIX, handle, summary, codec=codec)

    async def _render(self, exchange: ApiExchange, codec: Codec) -> None:
        options = parse_hash_options(exchange.query)
        body = await self._decoder.read_body(exchange)
        request, _ = await self._decoder.decode(exchange, codec, body)
        entry = require_token_model(self._service.find(request.model))
        request = self._service.resolve_tools(request)
        ids = await render_prompt(entry, request)
        response: dict[str, Any] = {
            "model": entry.name,
            "count": len(ids),
            "max_model_len": entry.context_length,
            "token_ids": ids.tolist(),
        }
        if options is not None:
            response["hashes"] = await hash_blocks(ids, entry, request, options)
        await exchange.respond(200, msgspec.json.encode(response))


def parse_hash_options(query: Mapping[str, str]) -> BlockHashOptions | None:
    """Return the options of the query string, None if it requests no hashes."""
    algorithm = query.get("block_hashes")
    if algorithm is None:
        for name in ("block_size", "seed"):
            if name in query:
                raise InvalidRequest(f"`{name}` requires `block_hashes`", param=name)
        return None
    if algorithm not in ALGORITHMS:
        raise InvalidRequest(
            f"`block_hashes` must be one of {', '.join(ALGORITHMS)}, got {algorithm[:64]!r}",
            param="block_hashes",
        )
    size = query.get("block_size", str(DEFAULT_BLOCK_SIZE))
    if not (size.isascii() and size.isdecimal() and len(size) <= 5 and int(size) >= 1):
        raise InvalidRequest(
            f"`block_size` must be between 1 and {MAX_BLOCK_SIZE}, got {size[:64]!r}",
            param="block_size",
        )
    return BlockHashOptions(algorithm, _parse_seed(algorithm, query.get("seed")), int(size))


def _parse_seed(algorithm: str, seed: str | None) -> int | str:
    if algorithm == DYNAMO_ALGORITHM:
        if seed is None:
            return DEFAULT_DYNAMO_SEED
        if not (seed.isascii() and seed.isdecimal() and len(seed) <= 20 and int(seed) <= _MAX_SEED):
            raise InvalidRequest(
                f"`seed` must be between 0 and {_MAX_SEED}, got {seed[:64]!r}", param="seed"
            )
        return int(seed)
    if seed is None:
        if "xxhash" in algorithm:
            raise InvalidRequest(
                f"`seed` is required with {algorithm}: the value of PYTHONHASHSEED in the "
                "environment of vLLM, whose seed is random without it",
                param="seed",
            )
        return DEFAULT_VLLM_SEED
    if len(seed) > _MAX_SEED_CHARS:
        raise InvalidRequest(
            f"`seed` must have at most {_MAX_SEED_CHARS} characters, got {len(seed)}", param="seed"
        )
    return seed


async def hash_blocks(
    ids: "array[int]", entry: TokenModel, request: Request, options: BlockHashOptions
) -> dict[str, Any]:
    """Return the hashes of the complete blocks of a prompt, with their options."""
    salt = cache_salt(request)
    engine_salt = entry.engine.index.engine_salt(salt)
    if options.algorithm == DYNAMO_ALGORITHM:
        found = await run_in_thread(len(ids), lambda: _hash_for_dynamo(ids, entry, salt, options))
    elif entry.adapter is not None:
        raise Unsupported(
            f"The block hashes of vLLM for the adapter {entry.adapter} depend on the path from "
            f"which vLLM loaded it. Use block_hashes={DYNAMO_ALGORITHM}.",
            param="block_hashes",
        )
    else:
        found = await run_in_thread(len(ids), lambda: _hash_for_vllm(ids, engine_salt, options))
    return {**msgspec.to_builtins(options), **found}


def _hash_for_dynamo(
    ids: "array[int]", entry: TokenModel, salt: str | None, options: BlockHashOptions
) -> dict[str, Any]:
    size, seed = options.block_size, options.seed
    assert isinstance(seed, int)
    found = hash_dynamo_blocks(ids, size, seed=seed, cache_salt=salt, lora_name=entry.adapter)
    return {"block_hashes": found.blocks, "sequence_hashes": found.sequences}


def _hash_for_vllm(
    ids: "array[int]", salt: str | None, options: BlockHashOptions
) -> dict[str, Any]:
    name = options.algorithm.removeprefix(VLLM_PREFIX)
    digests = hash_vllm_blocks(
        ids, options.block_size, name, seed=str(options.seed), cache_salt=salt
    )
    return {
        "block_hashes": [to_event_hash(one) for one in digests],
        "digests": [one.hex() for one in digests],
    }
