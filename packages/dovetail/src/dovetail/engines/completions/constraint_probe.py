"""Probe which constraints a server of the completions protocol enforces.

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

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.engine import Constraint, ConstraintSyntax, EngineRequest
from dovetail.engines.token_stream import collect_token_ids
from dovetail_model import ClientError, EngineTimeout, Sampling
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
