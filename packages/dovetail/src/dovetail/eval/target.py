"""The endpoint under evaluation: its model, its engine, and whether its context is large enough."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from dovetail.engines.engine import RemoteModel
from dovetail.engines.openai.discovery import (
    discover,
    find_context_length,
    list_models,
)
from dovetail.engines.timeouts import DISCOVERY_TIMEOUTS
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
MIN_CONTEXT_TOKENS = 6000  # tools, system text, and the longest task with its output


class EvalError(Exception):
    """Raised if the endpoint cannot be evaluated; the message is the reason."""


@dataclass(frozen=True)
class EvalOptions:
    """The user's options for the endpoint."""

    url: str
    api_key: str | None = None
    model: str | None = None
    engine: Literal["auto", "vllm", "sglang", "openai"] = "auto"
    tokenizer: str | None = None
    parsers: ParserNames = field(default_factory=ParserNames)


@dataclass(frozen=True)
class EvalTarget:
    """The endpoint. `engine` is how Dovetail connects to it, `engine_reason` why.

    `supports_token_ids`: it can return the token ids of chat requests, like vLLM.
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
    """Query the server. Raises `EvalError` if it cannot be evaluated."""
    endpoint = _parse_endpoint(options.url, options.api_key)
    try:
        found = await discover(endpoint)
        kind = await _detect_server(endpoint, found)
        model = options.model or found.name
        size = found.context_length
        if found.names and model in found.names and model != found.name:
            size = await find_context_length(endpoint, model, await list_models(endpoint))
    except DovetailError as error:
        rejected = any(status in error.message for status in ("(401)", "(403)"))
        hint = ": pass its key with --api-key" if rejected else ""
        raise EvalError(f"{error.message}{hint}") from error
    _validate(options, found, model, size)
    references = _load_references(options, model, found)
    reference = references.get(model)
    engine, reason = _choose_engine(options, kind, reference)
    return EvalTarget(
        options, endpoint, model, engine, reason, kind == "vllm", references, reference
    )


def _parse_endpoint(url: str, key: str | None) -> Endpoint:
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise EvalError("--api-key contains characters that are not allowed in an HTTP header")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        return Endpoint.parse(url.rstrip("/").removesuffix("/v1"), headers)
    except ValueError as error:
        raise EvalError(str(error)) from error


def _validate(options: EvalOptions, found: RemoteModel, model: str, size: int | None) -> None:
    if not model:
        raise EvalError(f"the server at {options.url} does not list its models: set --model")
    if options.model is not None and found.names and options.model not in found.names:
        names = ", ".join(found.names[:8]) + (", …" if len(found.names) > 8 else "")
        raise EvalError(f"the server does not serve --model {options.model!r}, only {names}")
    if size is not None and size < MIN_CONTEXT_TOKENS:
        raise EvalError(
            f"the context length of {model} must be >= {MIN_CONTEXT_TOKENS:,} tokens for the "
            f"tasks, got {size:,}: start the server with a larger one"
        )


async def _detect_server(endpoint: Endpoint, found: RemoteModel) -> EvalEngineName:
    """Detect the kind of server: from its model list, or from a path that only vLLM has."""
    owner = found.version.lower()
    if owner == "sglang":
        return "sglang"
    if owner == "vllm":
        return "vllm"
    try:
        status, content = await fetch(
            endpoint, ClientRequest("GET", "/version", timeouts=DISCOVERY_TIMEOUTS)
        )
        version = msgspec.json.decode(content) if status == 200 else None
    except (DovetailError, msgspec.DecodeError, UnicodeError):
        return "openai"
    return "vllm" if isinstance(version, dict) and "version" in version else "openai"


def _load_references(options: EvalOptions, model: str, found: RemoteModel) -> ReferenceModels:
    """Load the model's tokenizer and template, if available. Downloads only what the user named."""
    named = (
        load_reference(find_model(options.tokenizer), options.parsers)
        if options.tokenizer
        else None
    )
    root = found.root if model == found.name else None
    return ReferenceModels(named, (ListedModel(model, root),), options.parsers)


def _choose_engine(
    options: EvalOptions, kind: EvalEngineName, reference: ReferenceModel
) -> tuple[EvalEngineName, str]:
    """Return how Dovetail connects to the endpoint, and why: with token prompts if possible."""
    if options.engine != "auto":
        return options.engine, "set by --engine"
    if kind == "openai":
        return "openai", "it is not known to accept token prompts"
    if not reference.has_tokenizer:
        return "openai", "the tokenizer of its model was not found (set --tokenizer)"
    return kind, f"it accepts token prompts; the tokenizer is that of {reference.origin}"
