"""A stage for the scripted engine: a byte tokenizer with a few control tokens, and requests."""

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
    """A request for a prompt in text; it stops at `<|end|>` and has an id of its own."""
    fields = {"id": f"r{next(_numbers)}", "max_tokens": 10_000, **fields}
    fields.setdefault("stop_ids", frozenset({END}))
    return EngineRequest(prompt=array("I", ids(prompt)), **fields)


def engine(script: str | Script, stop_ids: Sequence[int] = (), **options: Any) -> ScriptedEngine:
    """An engine for a script in YAML."""
    made = parse_script(script) if isinstance(script, str) else script
    return ScriptedEngine(TOKENIZER, made, options=ScriptedOptions(**options), stop_ids=stop_ids)


async def deltas(playing: ScriptedEngine, asked: EngineRequest) -> list[TokenDelta]:
    return [delta async for delta in iter_deltas(playing, asked)]


async def said(playing: ScriptedEngine, asked: EngineRequest) -> str:
    """The whole answer as text, control tokens spelled out."""
    return TOKENIZER.decode([id for delta in await deltas(playing, asked) for id in delta.ids])


def play(playing: ScriptedEngine, asked: EngineRequest) -> list[TokenDelta]:
    return asyncio.run(deltas(playing, asked))


def play_text(playing: ScriptedEngine, asked: EngineRequest) -> str:
    return asyncio.run(said(playing, asked))
