"""Discover a vLLM server's model, and probe which constraints it enforces.

A vLLM server that was started with a reasoning parser applies a constraint only after the
reasoning. Versions before 0.11 have another field for constraints and ignore this one. Some
backends support only JSON schemas. Each syntax is therefore probed: the output must be the one word
that the constraint allows.

Lark is never probed: the first constraint that a server receives selects the backend for all later
ones, and Lark would select a backend other than the default.
"""

import asyncio
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.completions.errors import error_from_status
from dovetail.engines.engine import Constraint, ConstraintSyntax, EngineRequest, RemoteModel
from dovetail.engines.registry import EngineSetupError
from dovetail.engines.steps.remote import discover_step_engine
from dovetail.engines.timeouts import DISCOVERY_TIMEOUTS
from dovetail.engines.token_ids import FRAME_ERRORS
from dovetail.engines.token_stream import collect_token_ids
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import (
    ClientError,
    DovetailError,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Sampling,
)
from dovetail_tokenizers import Tokenizer

PROBE_WORD = "dovetail"
#: The constraint syntaxes, best first, each with a constraint and the only output that it allows.
PROBES: Mapping[ConstraintSyntax, tuple[str, str]] = {
    "structural_tag": (
        f'{{"type":"structural_tag","format":{{"type":"const_string","value":"{PROBE_WORD}"}}}}',
        PROBE_WORD,
    ),
    "ebnf": (f'root ::= "{PROBE_WORD}"', PROBE_WORD),
    "json_schema": (f'{{"enum":["{PROBE_WORD}"]}}', f'"{PROBE_WORD}"'),
}
_PROBE_MAX_TOKENS = 16  # enough for the word with any vocabulary
_REASONING_END = "</think>"


@dataclass(frozen=True)
class EnforcedConstraints:
    """The syntaxes that a server enforces, from the first token on or only after the reasoning."""

    constraints: tuple[ConstraintSyntax, ...]
    after_reasoning: bool = False


async def probe_constraints(client: CompletionsClient, tokenizer: Tokenizer) -> EnforcedConstraints:
    """Probe which syntaxes the server enforces. Raise an `EngineError` if a request fails."""
    syntaxes = await _enforced_syntaxes(client, tokenizer, "Hello")
    if syntaxes or _REASONING_END not in tokenizer.controls:
        return EnforcedConstraints(syntaxes)
    syntaxes = await _enforced_syntaxes(client, tokenizer, f"<think>\n\n{_REASONING_END}\n\n")
    return EnforcedConstraints(syntaxes, after_reasoning=bool(syntaxes))


async def _enforced_syntaxes(
    client: CompletionsClient, tokenizer: Tokenizer, prompt: str
) -> tuple[ConstraintSyntax, ...]:
    ids = array("I", tokenizer.encode(prompt))
    results = await asyncio.gather(
        *(_is_enforced(client, tokenizer, ids, syntax) for syntax in PROBES)
    )
    return tuple(syntax for syntax, enforced in zip(PROBES, results, strict=True) if enforced)


async def _is_enforced(
    client: CompletionsClient, tokenizer: Tokenizer, prompt: "array[int]", syntax: ConstraintSyntax
) -> bool:
    grammar, word = PROBES[syntax]
    request = EngineRequest(
        id=f"dovetail-probe-{syntax}",
        prompt=prompt,
        max_tokens=_PROBE_MAX_TOKENS,
        sampling=Sampling(temperature=0.0),
        constraint=Constraint(syntax, grammar),
    )
    try:
        output = await collect_token_ids(client, request)
    except (ClientError, EngineTimeout):
        return False
    return tokenizer.decode(output).startswith(word)


class VllmModelCard(msgspec.Struct, frozen=True):
    """One entry of the model list.

    `root`: the path or name from which the model was loaded.
    `parent`: the base model of a LoRA adapter; None for other models.
    """

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    owned_by: str | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[VllmModelCard] = []


class _Version(msgspec.Struct, frozen=True):
    version: str = ""


async def discover(endpoint: Endpoint) -> RemoteModel:
    """Return the server's model with all its names. LoRA adapters are separate models.

    Raise `EngineSetupError` if the server is SGLang, which would not return token ids.
    """
    if endpoint.steps:
        return await discover_step_engine(endpoint)
    cards = await list_models(endpoint)
    if any(card.owned_by == "sglang" for card in cards):
        raise EngineSetupError(f"the server at {endpoint} is SGLang: use --engine sglang")
    first = next((card for card in cards if card.parent is None), cards[0])
    return RemoteModel(
        name=first.id,
        names=tuple(card.id for card in cards if card.root == first.root),
        root=first.root,
        context_length=first.max_model_len,
        version=await _fetch_version(endpoint),
        adapters=tuple(card.id for card in cards if card.parent is not None),
    )


async def list_models(endpoint: Endpoint) -> list[VllmModelCard]:
    """Return all models of the server.

    If the request fails, the error states what to check: the address, the API key or the server.
    """
    server_name = f"the server at {endpoint}"
    try:
        status, content = await fetch(
            endpoint, ClientRequest("GET", "/v1/models", timeouts=DISCOVERY_TIMEOUTS)
        )
    except EngineUnavailable as fault:
        raise EngineUnavailable(f"{fault.message}: is vLLM running there?") from fault
    if status in (401, 403):
        raise EngineError(f"{server_name} rejected the API key ({status}): set --engine-api-key")
    if status == 404:
        raise EngineError(
            f"{server_name} has no /v1/models: it is not a vLLM server, or the address is wrong"
        )
    if status != 200:
        raise error_from_status(server_name, status, content)
    try:
        cards = msgspec.json.decode(content, type=_ModelList).data
    except FRAME_ERRORS as fault:
        raise EngineError(f"{server_name} returned an invalid model list ({fault})") from fault
    if not cards:
        raise EngineUnavailable(f"{server_name} serves no model")
    return cards


async def _fetch_version(endpoint: Endpoint) -> str:
    """Return the server's version, or an empty string if it is not reported."""
    try:
        status, content = await fetch(
            endpoint, ClientRequest("GET", "/version", timeouts=DISCOVERY_TIMEOUTS)
        )
        return msgspec.json.decode(content, type=_Version).version if status == 200 else ""
    except (DovetailError, *FRAME_ERRORS):
        return ""
