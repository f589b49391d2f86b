"""The settings of routing, KV caches and session scheduling."""

from dataclasses import dataclass
from typing import Literal

from dovetail.settings.definition import model_setting


@dataclass(frozen=True, kw_only=True)
class SchedulingConfig:
    """The part of `Config` that concerns replicas: which one gets a request, and when.

    The router and session scheduling use the capacity of the KV caches.
    """

    routing_policy: Literal["kv", "session", "least-loaded", "round-robin"] = model_setting(
        "kv",
        "How requests are assigned to replicas: kv (the session's home first, then cached prefix "
        "and load), session (the session's home, then load), least-loaded or round-robin.",
    )
    kv_events: tuple[str, ...] = model_setting(
        (),
        "Address of the KV events of vLLM or SGLang replicas, from which the server knows what "
        "they have cached: tcp://*:PORT (at the host of each replica), tcp://HOST:PORT, "
        "URL=tcp://HOST:PORT for the replica with this URL, or auto (SGLang reports it). "
        "Requires the extra kv.",
    )
    kv_events_replay: tuple[str, ...] = model_setting(
        (),
        "Address at which replicas send their earlier KV events again, in the same form.",
    )
    kv_block_size: int | None = model_setting(
        None,
        "Tokens per block of the replicas' KV caches, as their engine is configured (default: as "
        "the replicas report with --kv-events, else 16).",
    )
    kv_blocks: int | None = model_setting(
        None,
        "Blocks of each replica's KV cache, as its engine reports at startup (default: as many as "
        "hold a million tokens).",
    )
    session_scheduling: Literal["off", "auto"] = model_setting(
        "off",
        "Schedule sessions instead of requests: auto lets turns wait while more sessions are "
        "active than fit into a replica's KV cache.",
    )
    kv_tokens: int | None = model_setting(
        None,
        "Tokens that each replica's KV cache holds (default: as the engine reports, or "
        "--kv-blocks). Session scheduling uses it.",
    )
    session_max_wait: float = model_setting(
        240.0,
        "Maximum seconds that a turn waits with --session-scheduling auto. Keep it below the "
        "clients' timeouts.",
    )
