"""What a server keeps to, found out by asking it.

A vLLM that was started with a reasoning parser applies a constraint only behind the thought, one
before 0.11 knows the field by another name and ignores it, and some of its backends know only
schemas. So each notation is tried: the answer must be the one word that it allows.

Lark is never tried: the first constraint that a server sees decides for good which backend reads
all later ones, and Lark would have it choose another than it would choose for itself.
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
#: The notations, best first, each with the one word allowed.
PROBES: Mapping[ConstraintSyntax, tuple[str, str]] = {
    "structural_tag": (
        f'{{"type":"structural_tag","format":{{"type":"const_string","value":"{PROBE_WORD}"}}}}',
        PROBE_WORD,
    ),
    "ebnf": (f'root ::= "{PROBE_WORD}"', PROBE_WORD),
    "json_schema": (f'{{"enum":["{PROBE_WORD}"]}}', f'"{PROBE_WORD}"'),
}
_PROBE_MAX_TOKENS = 16  # tokens for the word, whatever the vocabulary
_REASONING_END = "</think>"


@dataclass(frozen=True)
class EnforcedConstraints:
    """The notations that a server enforces: from the first token on, or only behind thoughts."""

    constraints: tuple[ConstraintSyntax, ...]
    after_reasoning: bool = False


async def probe_constraints(client: CompletionsClient, tokenizer: Tokenizer) -> EnforcedConstraints:
    """What the server enforces. Raises an `EngineError` if it cannot be asked."""
    kept = await _enforced_syntaxes(client, tokenizer, "Hello")
    if kept or _REASONING_END not in tokenizer.controls:
        return EnforcedConstraints(kept)
    kept = await _enforced_syntaxes(client, tokenizer, f"<think>\n\n{_REASONING_END}\n\n")
    return EnforcedConstraints(kept, after_reasoning=bool(kept))


async def _enforced_syntaxes(
    client: CompletionsClient, tokenizer: Tokenizer, prompt: str
) -> tuple[ConstraintSyntax, ...]:
    ids = array("I", tokenizer.encode(prompt))
    kept = await asyncio.gather(
        *(_is_enforced(client, tokenizer, ids, syntax) for syntax in PROBES)
    )
    return tuple(syntax for syntax, keeps in zip(PROBES, kept, strict=True) if keeps)


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
        said = await collect_token_ids(client, request)
    except (ClientError, EngineTimeout):
        return False
    return tokenizer.decode(said).startswith(word)
