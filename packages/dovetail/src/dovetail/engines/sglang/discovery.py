"""Discover which model an SGLang server serves, and how it was started.

Paths differ between versions, and a router with SGLang's `/generate` has none of them. Facts that
cannot be found are left unset.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from dovetail.engines.engine import ConstraintSyntax, RemoteModel
from dovetail.engines.registry import EngineSetupError
from dovetail.engines.sglang.frames import sglang_error_from_status
from dovetail.engines.timeouts import DISCOVERY_TIMEOUTS
from dovetail.engines.token_ids import FRAME_ERRORS
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import EngineError


class SglangOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts that the server may not report. Unset options are queried.

    `priority`: whether its scheduler runs higher or lower numbers first.
    `grammar_backend`: the value of its flag of that name.
    `silence`: the read timeout in seconds. A server sends no data during a long prefill.
    """

    priority: Literal["higher", "lower", "off"] | None = None
    grammar_backend: Literal["xgrammar", "llguidance", "outlines", "none"] | None = None
    silence: float = 600.0


MODEL_INFO_PATHS = ("/model_info", "/get_model_info")
SERVER_INFO_PATHS = ("/server_info", "/get_server_info")
MODEL_LIST_PATH = "/v1/models"
#: SGLang's `/health` generates a token, so it is the last resort.
HEALTH_PATHS = ("/ready", *MODEL_INFO_PATHS, "/health")


async def discover(endpoint: Endpoint) -> RemoteModel:
    """Return the model that the server serves.

    Raise an `EngineError` if it reports no model, and `EngineSetupError` if it is vLLM.
    """
    model = await fetch_json(endpoint, *MODEL_INFO_PATHS) or {}
    server = await fetch_json(endpoint, *SERVER_INFO_PATHS) or {}
    cards = await _list_model_cards(endpoint)
    if not (model or server) and await _is_vllm(endpoint, cards):
        raise EngineSetupError(f"the server at {endpoint} is vLLM: use --engine vllm")
    # Adapters are separate models, which `/generate` selects by path.
    names = tuple(str(c["id"]) for c in cards if c.get("id") and not c.get("parent"))
    path = _text(model, "model_path") or _text(server, "model_path")
    name = _text(model, "served_model_name") or _text(server, "served_model_name")
    name = name or next(iter(names), None) or path
    if name is None:
        raise EngineError(f"{endpoint} does not report which model it serves: is it SGLang?")
    card = next((card for card in cards if card.get("id") == name), {})
    tokenizer = _text(model, "tokenizer_path") or _text(server, "tokenizer_path")
    return RemoteModel(
        name=name,
        names=names or (name,),
        root=tokenizer or path or _text(card, "root"),
        context_length=_context_length_field(card) or _context_length_field(server),
        version=_text(server, "version") or "",
    )


async def fetch_json(endpoint: Endpoint, *paths: str) -> Mapping[str, Any] | None:
    """Return the response of the first of these paths that exists; None if none exists."""
    for path in paths:
        status, content = await fetch(
            endpoint, ClientRequest("GET", path, timeouts=DISCOVERY_TIMEOUTS)
        )
        if status in (401, 403):
            raise sglang_error_from_status(status, content)
        if status != 200:
            continue
        try:
            return msgspec.json.decode(content, type=dict[str, Any])
        except FRAME_ERRORS:
            continue
    return None


async def find_model_path(endpoint: Endpoint) -> str | None:
    """Return the path that reports the server's model; None if there is none."""
    for path in (*MODEL_INFO_PATHS, MODEL_LIST_PATH):
        if parse_served_models(await fetch_json(endpoint, path) or {}):
            return path
    return None


def parse_served_models(info: Mapping[str, Any]) -> dict[str, str]:
    """Return the models in a response of such a path, by name with their origin."""
    cards = info.get("data")
    if isinstance(cards, list):
        known = [card for card in cards if isinstance(card, dict) and card.get("id")]
        return {str(card["id"]): str(card.get("root") or card["id"]) for card in known}
    path = _text(info, "model_path") or ""
    name = _text(info, "served_model_name") or path
    tokenizer = _text(info, "tokenizer_path") or path
    return {name: path if tokenizer == path else f"{path} with {tokenizer}"} if name else {}


async def find_health_path(endpoint: Endpoint) -> str:
    """Return the cheapest path that reports the server's health."""
    for path in HEALTH_PATHS:
        status, _ = await fetch(endpoint, ClientRequest("GET", path, timeouts=DISCOVERY_TIMEOUTS))
        if status in (200, 503):
            return path
    return MODEL_LIST_PATH


async def _list_model_cards(endpoint: Endpoint) -> list[Mapping[str, Any]]:
    listing = await fetch_json(endpoint, MODEL_LIST_PATH) or {}
    cards = listing.get("data")
    return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []


async def _is_vllm(endpoint: Endpoint, cards: list[Mapping[str, Any]]) -> bool:
    """Return whether the server is vLLM, which has no `/generate` but a list of models, too."""
    if any(card.get("owned_by") == "vllm" for card in cards):
        return True
    return _text(await fetch_json(endpoint, "/version") or {}, "version") is not None


def _text(info: Mapping[str, Any], name: str) -> str | None:
    value = info.get(name)
    return value if isinstance(value, str) and value else None


def _context_length_field(info: Mapping[str, Any]) -> int | None:
    """Return the context length, by SGLang's names for the field or by Dynamo's."""
    values = (info.get(name) for name in ("max_model_len", "context_length", "context_window"))
    return next((value for value in values if type(value) is int and value > 0), None)


#: Whether the priority scheduler runs higher or lower numbers first.
PriorityOrder = Literal["higher", "lower"]

#: The syntaxes that each grammar backend enforces, best first. llguidance parses SGLang's EBNF
#: field as Lark or GBNF, and supports only an older form of structural tags than xgrammar's.
BACKEND_SYNTAXES: Mapping[str, tuple[ConstraintSyntax, ...]] = {
    "xgrammar": ("structural_tag", "ebnf", "json_schema"),
    "llguidance": ("lark", "gbnf", "ebnf", "json_schema"),
    "outlines": ("json_schema",),
    "none": (),
}
DEFAULT_GRAMMAR_BACKEND = "xgrammar"


@dataclass(frozen=True)
class SglangServerInfo:
    """How a server was started. `reported` is False if it does not report this, as a router.

    `has_session_references`: it evicts what belongs to open sessions last.
    """

    reported: bool = False
    priority_order: PriorityOrder | None = None
    constraints: tuple[ConstraintSyntax, ...] = ()
    context_length: int | None = None
    incremental_output: bool | None = None
    version: str = ""
    kv_tokens: int | None = None
    has_session_references: bool = False


def parse_server_info(
    reported: Mapping[str, Any] | None, options: SglangOptions
) -> SglangServerInfo:
    """Parse a response of `/server_info`. The options take precedence."""
    info = reported or {}
    backend = options.grammar_backend or _grammar_backend(reported)
    return SglangServerInfo(
        reported=reported is not None,
        priority_order=_priority_order(info, options),
        constraints=BACKEND_SYNTAXES.get(backend, ()),
        context_length=_max_context_length(info),
        incremental_output=_flag(info, "incremental_streaming_output", "stream_output"),
        version=str(info.get("version") or ""),
        kv_tokens=_number(info, "max_total_num_tokens") or None,
        has_session_references=bool(info.get("enable_session_radix_cache")),
    )


def _grammar_backend(reported: Mapping[str, Any] | None) -> str:
    """Return the grammar backend; none is assumed if the server reports nothing."""
    if reported is None:
        return "none"
    return str(reported.get("grammar_backend") or DEFAULT_GRAMMAR_BACKEND)


def _priority_order(info: Mapping[str, Any], options: SglangOptions) -> PriorityOrder | None:
    if options.priority is not None:
        return None if options.priority == "off" else options.priority
    if not info.get("enable_priority_scheduling"):
        return None
    return "lower" if info.get("schedule_low_priority_values_first") else "higher"


def _max_context_length(info: Mapping[str, Any]) -> int | None:
    """Return the maximum tokens of a request: the KV cache can be smaller than the context window.

    SGLang rejects a request whose prompt and `max_new_tokens` exceed the context length minus the
    room for draft tokens, even if a shorter output would fit.
    """
    drafts = max(
        _number(info, "speculative_eagle_topk") * _number(info, "speculative_num_steps"),
        _number(info, "speculative_num_draft_tokens"),
    )
    limits = (_number(info, "context_length") - drafts, _number(info, "max_req_input_len"))
    return min((limit for limit in limits if limit > 0), default=None)


def _number(info: Mapping[str, Any], name: str) -> int:
    value = info.get(name)
    return value if isinstance(value, int) else 0


def _flag(info: Mapping[str, Any], *names: str) -> bool | None:
    """Return a flag by its current or former name; None if it is not reported."""
    return next((bool(info[name]) for name in names if info.get(name) is not None), None)
