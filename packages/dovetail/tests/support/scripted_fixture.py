"""Scripted engines with a byte tokenizer and a few control tokens, and requests for them."""

import asyncio
from array import array
from collections.abc import Sequence
from itertools import count
from typing import Any

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.scripted import ScriptedEngine, ScriptedOptions, parse_script
from dovetail.engines.scripted.script import Script
from dovetail.engines.token_stream import iter_deltas
from dovetail_tokenizers import ByteTokenizer

CONTROLS = ("<|end|>", "<|return|>", "<think>", "</think>")
TOKENIZER = ByteTokenizer(CONTROLS)
END, RETURN = TOKENIZER.controls["<|end|>"], TOKENIZER.controls["<|return|>"]

_numbers = count()


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def request(prompt: str = "hello", **fields: Any) -> EngineRequest:
    """Create a request for a text prompt, with its own id; it stops at `<|end|>`."""
    fields = {"id": f"r{next(_numbers)}", "max_tokens": 10_000, **fields}
    fields.setdefault("stop_ids", frozenset({END}))
    return EngineRequest(prompt=array("I", ids(prompt)), **fields)


def engine(script: str | Script, stop_ids: Sequence[int] = (), **options: Any) -> ScriptedEngine:
    """Create an engine for a script in YAML."""
    made = parse_script(script) if isinstance(script, str) else script
    return ScriptedEngine(TOKENIZER, made, options=ScriptedOptions(**options), stop_ids=stop_ids)


async def deltas(scripted: ScriptedEngine, request: EngineRequest) -> list[TokenDelta]:
    return [delta async for delta in iter_deltas(scripted, request)]


async def generate_text(scripted: ScriptedEngine, request: EngineRequest) -> str:
    """Return the complete output as text, with control tokens."""
    return TOKENIZER.decode([id for delta in await deltas(scripted, request) for id in delta.ids])


def play(scripted: ScriptedEngine, request: EngineRequest) -> list[TokenDelta]:
    return asyncio.run(deltas(scripted, request))


def play_text(scripted: ScriptedEngine, request: EngineRequest) -> str:
    return asyncio.run(generate_text(scripted, request))
