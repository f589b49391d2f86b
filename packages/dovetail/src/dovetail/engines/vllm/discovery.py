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
from dovetail.engines.engine import Constraint, EngineRequest, Syntax
from dovetail.engines.token_stream import whole
from dovetail_model import ClientError, EngineTimeout, Sampling
from dovetail_tokenizers import Tokenizer

WORD = "dovetail"
#: The notations, best first, each with the one word allowed.
PROBES: Mapping[Syntax, tuple[str, str]] = {
    "structural_tag": (
        f'{{"type":"structural_tag","format":{{"type":"const_string","value":"{WORD}"}}}}',
        WORD,
    ),
    "ebnf": (f'root ::= "{WORD}"', WORD),
    "json_schema": (f'{{"enum":["{WORD}"]}}', f'"{WORD}"'),
}
_ENOUGH = 16  # tokens for the word, whatever the vocabulary
_THOUGHT_END = "</think>"


@dataclass(frozen=True)
class Kept:
    """The notations that a server enforces: from the first token on, or only behind thoughts."""

    constraints: tuple[Syntax, ...]
    behind_thought: bool = False


async def enforced(client: CompletionsClient, tokenizer: Tokenizer) -> Kept:
    """What the server enforces. Raises an `EngineError` if it cannot be asked."""
    kept = await _all_kept(client, tokenizer, "Hello")
    if kept or _THOUGHT_END not in tokenizer.controls:
        return Kept(kept)
    kept = await _all_kept(client, tokenizer, f"<think>\n\n{_THOUGHT_END}\n\n")
    return Kept(kept, behind_thought=bool(kept))


async def _all_kept(
    client: CompletionsClient, tokenizer: Tokenizer, prompt: str
) -> tuple[Syntax, ...]:
    ids = array("I", tokenizer.encode(prompt))
    kept = await asyncio.gather(*(_keeps(client, tokenizer, ids, syntax) for syntax in PROBES))
    return tuple(syntax for syntax, keeps in zip(PROBES, kept, strict=True) if keeps)


async def _keeps(
    client: CompletionsClient, tokenizer: Tokenizer, prompt: "array[int]", syntax: Syntax
) -> bool:
    grammar, word = PROBES[syntax]
    request = EngineRequest(
        id=f"dovetail-probe-{syntax}",
        prompt=prompt,
        max_tokens=_ENOUGH,
        sampling=Sampling(temperature=0.0),
        constraint=Constraint(syntax, grammar),
    )
    try:
        said = await whole(client, request)
    except (ClientError, EngineTimeout):
        return False
    return tokenizer.decode(said).startswith(word)
