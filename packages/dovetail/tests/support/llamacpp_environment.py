"""The embedded engine with real weights, for tests that can wait for a small model."""

import asyncio
import importlib.util
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta
from dovetail.engines.llamacpp import LlamaCppEngine
from dovetail.engines.token_stream import iter_deltas
from dovetail_model import Sampling
from dovetail_tokenizers import HfTokenizer, from_gguf

WEIGHTS = Path(__file__).parents[4] / ".cache" / "tokenizers" / "smollm2" / "smollm2.gguf"
CONTEXT = 512
END = 2  # <|im_end|>


def need_weights() -> None:
    """Skip the test if the model is not available."""
    if not WEIGHTS.exists():
        pytest.skip("no weights: run tools/fetch_tokenizers.py smollm2")
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")


class Player:
    """An engine and its event loop."""

    def __init__(self, runner: asyncio.Runner, engine: LlamaCppEngine, tok: HfTokenizer) -> None:
        self.runner = runner
        self.engine = engine
        self.tokenizer = tok

    def ids(self, text: str) -> "array[int]":
        return array("i", self.tokenizer.encode(text))

    def chat(self, text: str) -> "array[int]":
        return self.ids(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")

    def play(self, request: EngineRequest) -> list[TokenDelta]:
        return self.runner.run(collect(self.engine, request))


async def collect(engine: LlamaCppEngine, request: EngineRequest) -> list[TokenDelta]:
    return [delta async for delta in iter_deltas(engine, request)]


def request(
    prompt: "array[int]",
    max_tokens: int = 64,
    *,
    grammar: str | None = None,
    session: str | None = None,
    logprobs: int | None = None,
) -> EngineRequest:
    """Create a greedy request."""
    return EngineRequest(
        id="r",
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=Sampling(temperature=0.0, seed=1, logprobs=logprobs),
        stop_ids=frozenset({0, END}),
        constraint=Constraint("gbnf", grammar) if grammar is not None else None,
        session=session,
    )


def all_ids(deltas: Sequence[TokenDelta]) -> list[int]:
    return [id for delta in deltas for id in delta.ids]


def load_tokenizer() -> HfTokenizer:
    return from_gguf(WEIGHTS)
