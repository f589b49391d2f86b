"""The endpoint that is tried: what it serves, what it is, and whether the tasks fit into it."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from dovetail.engines.engine import RemoteModel
from dovetail.engines.openai.discovery import (
    DISCOVERY_TIMEOUTS,
    discover,
    find_context_length,
    list_models,
)
from dovetail.models.weights import find_model
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail.watch.reference_model import (
    ListedModel,
    ParserNames,
    ReferenceModel,
    ReferenceModels,
    load_reference,
)
from dovetail_model import DovetailError

EvalEngineName = Literal["vllm", "sglang", "openai"]
MIN_CONTEXT_TOKENS = 6000  # tokens: tools and system text, the longest task, and what is said in it


class EvalError(Exception):
    """The endpoint cannot be tried, and why."""


@dataclass(frozen=True)
class EvalOptions:
    """What the user said of the endpoint."""

    url: str
    api_key: str | None = None
    model: str | None = None
    engine: Literal["auto", "vllm", "sglang", "openai"] = "auto"
    tokenizer: str | None = None
    parsers: ParserNames = field(default_factory=ParserNames)


@dataclass(frozen=True)
class EvalTarget:
    """What was found out. `engine` is how Dovetail speaks to it, `why` says why so.

    `asks_ids` says that it gives token ids to a chat that asks for them, as a vLLM does.
    """

    options: EvalOptions
    endpoint: Endpoint
    model: str
    engine: EvalEngineName
    engine_reason: str
    supports_token_ids: bool
    references: ReferenceModels
    reference: ReferenceModel


async def inspect_target(options: EvalOptions) -> EvalTarget:
    """Asks the server. Raises `AcceptError` where there is nothing that could be tried."""
    endpoint = _parse_endpoint(options.url, options.api_key)
    try:
        found = await discover(endpoint)
        kind = await _detect_server(endpoint, found)
        model = options.model or found.name
        size = found.context_length
        if found.names and model in found.names and model != found.name:
            size = await find_context_length(endpoint, model, await list_models(endpoint))
    except DovetailError as fault:
        hint = ": pass its own with --api-key" if "our key" in fault.message else ""
        raise EvalError(f"{fault.message}{hint}") from fault
    _validate(options, found, model, size)
    lenses = _load_references(options, model, found)
    lens = lenses.get(model)
    engine, why = _choose_engine(options, kind, lens)
    return EvalTarget(options, endpoint, model, engine, why, kind == "vllm", lenses, lens)


def _parse_endpoint(url: str, key: str | None) -> Endpoint:
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise EvalError("--api-key: no key has such characters in it")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        return Endpoint.parse(url.rstrip("/").removesuffix("/v1"), headers)
    except ValueError as fault:
        raise EvalError(str(fault)) from fault


def _validate(wish: EvalOptions, found: RemoteModel, model: str, size: int | None) -> None:
    if not model:
        raise EvalError(f"the server at {wish.url} does not list its models: name one (--model)")
    if wish.model is not None and found.names and wish.model not in found.names:
        shown = ", ".join(found.names[:8]) + (", …" if len(found.names) > 8 else "")
        raise EvalError(f"the server has no model {wish.model!r}, only {shown}")
    if size is not None and size < MIN_CONTEXT_TOKENS:
        raise EvalError(
            f"the window of {model} has {size:,} tokens, and the tasks need "
            f"{MIN_CONTEXT_TOKENS:,}: start the server with a larger one"
        )


async def _detect_server(endpoint: Endpoint, found: RemoteModel) -> EvalEngineName:
    """What the server is: by its own word, else by an address that only a vLLM has."""
    owner = found.version.lower()
    if owner == "sglang":
        return "sglang"
    if owner == "vllm":
        return "vllm"
    try:
        status, content = await fetch(
            endpoint, ClientRequest("GET", "/version", timeouts=DISCOVERY_TIMEOUTS)
        )
        told = msgspec.json.decode(content) if status == 200 else None
    except (DovetailError, msgspec.DecodeError, UnicodeError):
        return "openai"
    return "vllm" if isinstance(told, dict) and "version" in told else "openai"


def _load_references(wish: EvalOptions, model: str, found: RemoteModel) -> ReferenceModels:
    """The model's tokenizer and template, where they are at hand. Nothing is downloaded unasked."""
    named = load_reference(find_model(wish.tokenizer), wish.parsers) if wish.tokenizer else None
    root = found.root if model == found.name else None
    return ReferenceModels(named, (ListedModel(model, root),), wish.parsers)


def _choose_engine(
    wish: EvalOptions, kind: EvalEngineName, lens: ReferenceModel
) -> tuple[EvalEngineName, str]:
    """How Dovetail speaks to it: in tokens where that can be."""
    if wish.engine != "auto":
        return wish.engine, "as you said"
    if kind == "openai":
        return "openai", "it is not known to take prompts as tokens"
    if not lens.has_tokenizer:
        return "openai", "no tokenizer of its model is here (--tokenizer names one)"
    return kind, f"it takes prompts as tokens; the tokenizer is that of {lens.origin}"
