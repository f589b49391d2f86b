"""Discover a vLLM server's model, and the capacity of its KV cache."""

import re

import msgspec

from dovetail.engines.completions.model_list import list_models
from dovetail.engines.dynamo.discovery import is_dynamo
from dovetail.engines.engine import RemoteModel
from dovetail.engines.registry import EngineSetupError
from dovetail.engines.steps.remote import discover_step_engine
from dovetail.engines.timeouts import DISCOVERY_TIMEOUTS
from dovetail.engines.token_ids import FRAME_ERRORS
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import DovetailError

PROGRAM = "vLLM"
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="(\d+)"')


class _Version(msgspec.Struct, frozen=True):
    version: str = ""


async def discover(endpoint: Endpoint) -> RemoteModel:
    """Return the server's model with all its names. LoRA adapters are separate models.

    Raise `EngineSetupError` if the server is SGLang or Dynamo, which would not return token ids.
    """
    if endpoint.steps:
        return await discover_step_engine(endpoint)
    cards = await list_models(endpoint, PROGRAM)
    if any(card.owned_by == "sglang" for card in cards):
        raise EngineSetupError(f"the server at {endpoint} is SGLang: use --engine sglang")
    if await is_dynamo(endpoint, cards):
        raise EngineSetupError(f"the server at {endpoint} is Dynamo: use --engine dynamo")
    first = next((card for card in cards if card.parent is None), cards[0])
    return RemoteModel(
        name=first.id,
        names=tuple(card.id for card in cards if card.root == first.root),
        root=first.root,
        context_length=first.max_model_len,
        version=await _fetch_version(endpoint),
        adapters=tuple(card.id for card in cards if card.parent is not None),
    )


async def _fetch_version(endpoint: Endpoint) -> str:
    """Return the server's version, or an empty string if it is not reported."""
    try:
        status, content = await fetch(
            endpoint, ClientRequest("GET", "/version", timeouts=DISCOVERY_TIMEOUTS)
        )
        return msgspec.json.decode(content, type=_Version).version if status == 200 else ""
    except (DovetailError, *FRAME_ERRORS):
        return ""


async def fetch_kv_tokens(endpoint: Endpoint) -> int | None:
    """Return the capacity in tokens; None if the server does not report it."""
    try:
        request = ClientRequest("GET", "/metrics", timeouts=DISCOVERY_TIMEOUTS)
        status, content = await fetch(endpoint, request)
    except DovetailError:
        return None
    return _parse_kv_tokens(content.decode("utf-8", "replace")) if status == 200 else None


def _parse_kv_tokens(metrics: str) -> int | None:
    """Return blocks times block size, summed over the engines of one server (data parallel)."""
    total = 0
    for labels in _CACHE_CONFIG.findall(metrics):
        values = {name: int(number) for name, number in _LABEL.findall(labels)}
        total += values.get("num_gpu_blocks", 0) * values.get("block_size", 0)
    return total or None
