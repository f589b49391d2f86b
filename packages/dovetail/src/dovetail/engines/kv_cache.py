"""What a server reports about its KV cache and the events of this cache."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.engines.sglang.discovery import SERVER_INFO_PATHS, fetch_json
from dovetail.engines.timeouts import DISCOVERY_TIMEOUTS
from dovetail.net.http_client import ClientRequest, Endpoint, fetch

_METRICS_PATH = "/metrics"
_VLLM_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class KvCacheInfo:
    """The KV cache of a replica, as far as its server reports it.

    `block_tokens`: the tokens of a block.
    `blocks`: the number of blocks.
    `ranks`: the number of data-parallel ranks, each of which has a cache of its own.
    `events_port`: the port of its KV events.
    `replay_port`: the port on which events can be requested again.
    """

    block_tokens: int | None = None
    blocks: int | None = None
    ranks: int = 1
    events_port: int | None = None
    replay_port: int | None = None


async def fetch_kv_cache_info(engine: str, endpoint: Endpoint) -> KvCacheInfo:
    """Query a server. Raises `DovetailError` if it is not reachable."""
    if endpoint.steps:
        return KvCacheInfo()
    if engine == "sglang":
        return parse_server_info(await fetch_json(endpoint, *SERVER_INFO_PATHS) or {})
    request = ClientRequest("GET", _METRICS_PATH, timeouts=DISCOVERY_TIMEOUTS)
    status, content = await fetch(endpoint, request)
    return parse_metrics(content.decode(errors="replace")) if status == 200 else KvCacheInfo()


def parse_metrics(text: str) -> KvCacheInfo:
    """Parse the metrics of vLLM, which have one sample per rank."""
    found = _VLLM_CACHE.findall(text)
    if not found:
        return KvCacheInfo()
    labels = dict(_LABEL.findall(found[0]))
    return KvCacheInfo(
        _to_count(labels.get("block_size")), _to_count(labels.get("num_gpu_blocks")), len(found)
    )


def parse_server_info(info: Mapping[str, Any]) -> KvCacheInfo:
    """Parse SGLang's `/server_info`. It has `kv_events` if the server publishes events."""
    events = info.get("kv_events")
    events = events if isinstance(events, dict) else {}
    tokens = _to_count(info.get("max_total_num_tokens"))
    size = _to_count(events.get("block_size"))
    return KvCacheInfo(
        size,
        tokens // size if tokens and size else None,
        _to_count(events.get("dp_size")) or 1,
        _to_count(events.get("endpoint_port_base")),
        _to_count(events.get("replay_endpoint_port_base")),
    )


def _to_count(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if type(value) is int and value > 0 else None
