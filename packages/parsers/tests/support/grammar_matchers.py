"""The engines' own matchers behind one interface: the allowed tokens, and whether it may end.

llguidance is small and always installed. xgrammar needs torch: it runs in the interpreter named by
`DOVETAIL_VLLM_PYTHON`.
"""

import atexit
import base64
import json
import os
import subprocess
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol

import llguidance
import pytest
from vocabularies import Vocabulary, encode

#: Notation -> matcher.
READERS = {"lark": "llguidance", "ebnf": "xgrammar", "structural_tag": "xgrammar"}


class Matcher(Protocol):
    def allowed(self) -> "Mask":
        """Return the tokens that may come next."""

    def take(self, *ids: int) -> bool:
        """Consume tokens; return False if one is not allowed."""

    def may_end(self) -> bool:
        """Return whether the output so far is complete."""


class Mask:
    """A set of token ids as bits, the lowest first."""

    __slots__ = ("_bits", "_size")

    def __init__(self, bits: bytes, size: int) -> None:
        self._bits = bits
        self._size = size

    def __contains__(self, id: int) -> bool:
        return bool(self._bits[id >> 3] >> (id & 7) & 1)

    def choose(self, random: Random, never: frozenset[int]) -> int | None:
        """Choose one of them: try random ids, then the next one after a random id."""
        for _ in range(200):
            id = random.randrange(self._size)
            if id in self and id not in never:
                return id
        start = random.randrange(len(self._bits))
        for at in (*range(start, len(self._bits)), *range(start)):
            if self._bits[at]:
                ids = [at * 8 + i for i in range(8) if self._bits[at] >> i & 1]
                candidates: list[int] = [id for id in ids if id < self._size and id not in never]
                if candidates:
                    return random.choice(candidates)
        return None


def matcher(syntax: str, text: str, vocabulary: Vocabulary) -> Matcher:
    """Return a new matcher. Raise for a grammar that the engine rejects."""
    if READERS[syntax] == "llguidance":
        return _Llguidance(text, vocabulary)
    if "DOVETAIL_VLLM_PYTHON" not in os.environ:
        pytest.skip("DOVETAIL_VLLM_PYTHON names no interpreter with xgrammar")
    return _Xgrammar(syntax, text, vocabulary)


def accepts(syntax: str, text: str, vocabulary: Vocabulary, ids: list[int]) -> bool:
    """Return whether these tokens are a complete output."""
    return reads(syntax, text, vocabulary, ids) == "whole"


def reads(syntax: str, text: str, vocabulary: Vocabulary, ids: list[int]) -> str:
    """Classify these tokens: `whole`, `part`, or `refused`."""
    found = matcher(syntax, text, vocabulary)
    if not found.take(*ids):
        return "refused"
    return "whole" if found.may_end() else "part"


class _Llguidance:
    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self._size = len(vocabulary.spellings)
        self._matcher = llguidance.LLMatcher(_llguidance_tokens(vocabulary), text)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())

    def allowed(self) -> Mask:
        return Mask(self._matcher.compute_bitmask(), self._size)

    def take(self, *ids: int) -> bool:
        return bool(self._matcher.try_consume_tokens(list(ids)) == len(ids))

    def may_end(self) -> bool:
        ended = self._matcher.is_stopped() and not self._matcher.is_error()
        return bool(ended or self._matcher.is_accepting())


class _Xgrammar:
    """One at a time: the process has only the latest matcher."""

    def __init__(self, syntax: str, text: str, vocabulary: Vocabulary) -> None:
        self._size = len(vocabulary.spellings)
        self._process = _worker()
        if vocabulary.name not in self._process.known:
            spellings = [spelling.decode("latin-1") for spelling in vocabulary.spellings]
            self._process.call("vocabulary", vocabulary.name, spellings, vocabulary.end)
            self._process.known.add(vocabulary.name)
        self._process.call("begin", vocabulary.name, syntax, text)

    def allowed(self) -> Mask:
        return Mask(base64.b64decode(self._process.call("allowed")), self._size)

    def take(self, *ids: int) -> bool:
        return bool(self._process.call("take", ids) == len(ids))

    def may_end(self) -> bool:
        return bool(self._process.call("may_end"))


class _Process:
    """The interpreter with xgrammar, and the vocabularies that it received."""

    def __init__(self, python: str) -> None:
        command = [python, str(Path(__file__).with_name("xgrammar_worker.py"))]
        self.known: set[str] = set()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        atexit.register(self._end)

    def call(self, *request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        response = json.loads(self._process.stdout.readline())
        if len(response) > 1:
            raise ValueError(response[1])
        return response[0]

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@cache
def _worker() -> _Process:
    return _Process(os.environ["DOVETAIL_VLLM_PYTHON"])


@cache
def _llguidance_tokens(vocabulary: Vocabulary) -> Any:
    facts = SimpleNamespace(
        eos_token_id=vocabulary.end,
        bos_token_id=None,
        tokens=[_named(id, s) for id, s in enumerate(vocabulary.spellings)],
        special_token_ids=sorted(vocabulary.controls.values()),
    )
    facts.encode = lambda text: encode(text, vocabulary)
    return llguidance.LLTokenizer(_Wrapper(facts))  # type: ignore[arg-type]


class _Wrapper:
    """The tokenizer interface of llguidance."""

    is_tokenizer_wrapper = True

    def __init__(self, facts: SimpleNamespace) -> None:
        self.__dict__ |= vars(facts)

    def __call__(self, text: str) -> list[int]:
        found: list[int] = self.__dict__["encode"](text)
        return found


def _named(id: int, spelling: bytes) -> bytes:
    return spelling or b"<unused %d>" % id
