"""The lower bound of a prompt's tokens: never too high, and checked before rendering."""

import asyncio
import base64
import gc
import json
import random
import string
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from http_fixture import NAME, run, serving
from real_models import TOKENIZERS

from dovetail.pipeline.token_bound import (
    check_prompt_fits,
    count_text_chars,
    max_visible_chars,
    min_prompt_tokens,
    min_tokens_in_slices,
)
from dovetail.prompt import normalization
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.pdf_text import PdfText
from dovetail_model import ContextOverflow, Request, TextBlock, ToolResultBlock, ToolSpec, Turn
from dovetail_tokenizers import ByteTokenizer, Tokenizer, load_tokenizer

BRIEF = ("qwen3", "gemma3", "mistral_tekken")  # one of each kind; the others run in long suites
FOLDERS = [
    pytest.param(path, marks=() if path.name in BRIEF else pytest.mark.long, id=path.name)
    for path in (sorted(TOKENIZERS.iterdir()) if TOKENIZERS.is_dir() else ())
    if path.name != "mistral_spm"  # in a format that is not loaded directly
]
TEXTS = (
    "-" * 5000,
    "=" * 999 + " " * 5000,
    "e\u0301A\u030a" * 900,
    "한국어 " * 500,
    "ﬁ①Å" * 900,
    "\t\n \r" * 999,
    "http://example.com/?a=1&b=2 " * 300,
    "antidisestablishmentarianism" * 100,
)


@cache
def cached_tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def requests(text: str) -> Iterator[Request]:
    """A text in every part of a request that a prompt shows."""
    block = TextBlock(text)
    yield Request("m", turns=(Turn("user", (block,)),))
    yield Request("m", turns=(Turn("tool", (ToolResultBlock("id", (block,)),)),))
    yield Request("m", system=(block,))
    yield Request("m", tools=(ToolSpec("f", description=text),))


def vocabulary_texts(tokenizer: Tokenizer, seed: int) -> list[str]:
    """The longest tokens, and random ones, repeated."""
    ids = range(tokenizer.size)
    longest = sorted(ids, key=lambda id: len(tokenizer.bytes_of(id)))[-20:]
    chosen = [*longest, *random.Random(seed).sample(ids, 20)]
    return [tokenizer.bytes_of(id).decode("utf-8", "ignore") * 50 for id in chosen]


@pytest.mark.skipif(not FOLDERS, reason="no tokenizers: run `make tokenizers`")
@pytest.mark.parametrize("folder", FOLDERS)
def test_bound_is_never_too_high(folder: Path) -> None:
    tokenizer = cached_tokenizer(folder)
    letters = random.Random(1).choices(string.printable, k=5000)
    for text in (*TEXTS, "".join(letters), *vocabulary_texts(tokenizer, seed=2)):
        tokens = len(tokenizer.encode_plain(text))
        assert all(min_prompt_tokens(request, tokenizer) <= tokens for request in requests(text))
    assert 1 <= max_visible_chars(tokenizer) <= 256
    assert min_prompt_tokens(next(requests("word " * 10_000)), tokenizer) > 0


UNBROKEN = ("\u0301", "\u0301\u0323", "a\u0301", "漢", "\u1161", "é", "🦜", "qzx", "\u0e31")


@pytest.mark.skipif(not FOLDERS, reason="no tokenizers: run `make tokenizers`")
@pytest.mark.parametrize("folder", FOLDERS)
def test_unbroken_text_that_cannot_fit_is_rejected_after_few_slices(folder: Path) -> None:
    tokenizer = CountingTokenizer(cached_tokenizer(folder))
    for part in UNBROKEN:
        tokenizer.encoded_chars = 0
        request = next(requests(part * (400_000 // len(part))))
        with pytest.raises(ContextOverflow, match="> 1000 maximum"):
            check_prompt_fits(request, tokenizer, 1000)  # type: ignore[arg-type]
        assert tokenizer.encoded_chars <= 40_000


@pytest.mark.skipif(not FOLDERS, reason="no tokenizers: run `make tokenizers`")
@pytest.mark.parametrize("folder", FOLDERS)
def test_bound_by_slices_is_never_too_high(folder: Path) -> None:
    tokenizer = cached_tokenizer(folder)
    letters = "".join(random.Random(1).choices(string.printable, k=5000))
    texts = (*TEXTS, *(part * 1500 for part in UNBROKEN), letters, *vocabulary_texts(tokenizer, 3))
    for text in texts:
        tokens = len(tokenizer.encode_plain(text))
        for max_tokens in (tokens, max(1, tokens // 2), max(1, tokens // 8)):
            assert min_tokens_in_slices([text], tokenizer, max_tokens) <= tokens


class CountingTokenizer:
    """Counts the characters that a tokenizer encodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.encoded_chars = 0
        self.size = tokenizer.size
        self.bytes_of = tokenizer.bytes_of
        self.is_control = tokenizer.is_control
        self.decode = tokenizer.decode

    def encode_plain(self, text: str) -> list[int]:
        self.encoded_chars += len(text)
        return self._tokenizer.encode_plain(text)


class UnknownTokenizer:
    """A vocabulary that replaces long words by one unknown token."""

    size = 2

    def bytes_of(self, id: int) -> bytes:
        return b"<unk>"

    def is_control(self, id: int) -> bool:
        return False

    def encode_plain(self, text: str) -> list[int]:
        return [1]

    def decode(self, ids: list[int]) -> str:
        return "<unk>"


def test_no_bound_with_unknown_tokens() -> None:
    tokenizer = UnknownTokenizer()
    request = next(requests("x" * 1000))
    assert min_prompt_tokens(request, tokenizer) == 0  # type: ignore[arg-type]
    check_prompt_fits(request, tokenizer, 1)  # type: ignore[arg-type]


def test_characters_that_share_an_unknown_token_are_not_counted() -> None:
    class Fusing(CountingTokenizer):
        def encode_plain(self, text: str) -> list[int]:
            return [1] if "Ж" in text else super().encode_plain(text)

    tokenizer = Fusing(ByteTokenizer())
    assert min_tokens_in_slices(["Ж" * 100_000], tokenizer, 5) == 0  # type: ignore[arg-type]


def test_text_of_assistant_turns_may_be_dropped() -> None:
    request = Request("m", turns=(Turn("assistant", (TextBlock("x" * 1000),)),))
    assert count_text_chars(request) == 0


@pytest.mark.parametrize("text", ["", "x", "x" * 1000])
def test_bound_of_the_characters_is_never_too_low(text: str) -> None:
    """Neither for new turns nor for those that the normalizer has cached."""
    normalizer = PromptNormalizer()
    for request in requests(text):
        for _ in range(2):
            assert normalizer.max_chars(request) >= count_text_chars(request)
            normalizer.normalize(request)


def test_only_new_turns_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Turn] = []

    def count(turn: Turn) -> int:
        counted.append(turn)
        return 1000

    monkeypatch.setattr(normalization, "_turn_chars", count)
    history = tuple(
        Turn(role, (TextBlock(f"{role} {at}"),))
        for at in range(20)
        for role in ("user", "assistant")
    )
    new = Turn("user", (TextBlock("next"),))
    normalizer = PromptNormalizer()
    normalizer.normalize(Request("m", (*history, new)))
    counted.clear()
    assert normalizer.max_chars(Request("m", (*history, new))) == 40_000 + 1000
    assert counted[-1] is new
    assert len(counted) <= 2


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/messages", "messages"), ("/v1/responses", "input")]
)
def test_prompt_that_cannot_fit_is_rejected_before_rendering(
    path: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the form of each API."""

    def fail(*args: object) -> None:
        raise AssertionError("the prompt was rendered")

    monkeypatch.setattr("dovetail.prompt.renderer.PromptRenderer.render", fail)
    body = {"model": NAME, "max_tokens": 9, field: [{"role": "user", "content": "x" * 2_000_000}]}

    async def scene() -> None:
        async with serving() as stage:
            reply = await stage.request("POST", path, json.dumps(body).encode())
            assert reply.status == 400
            assert "2000000" in reply.json["error"]["message"]

    run(scene)


def test_documents_that_cannot_fit_are_rejected_before_rendering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them fits, and the request itself is small."""

    def fail(*args: object) -> None:
        raise AssertionError("the prompt was rendered")

    async def extract(self: object, data: bytes, max_chars: int, tenant: str) -> PdfText:
        return PdfText(1, ("x" * 60_000,))

    monkeypatch.setattr("dovetail.prompt.renderer.PromptRenderer.render", fail)
    monkeypatch.setattr("dovetail.pipeline.documents.PdfProcesses.extract", extract)
    data = base64.b64encode(b"%PDF-1.7").decode()
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    blocks = [{"type": "document", "source": source}] * 300
    body = {"model": NAME, "max_tokens": 9, "messages": [{"role": "user", "content": blocks}]}

    async def scene() -> None:
        async with serving() as stage:
            reply = await stage.request("POST", "/v1/messages", json.dumps(body).encode())
            assert reply.status == 400
            assert "prompt is too long" in reply.json["error"]["message"]

    run(scene)


@pytest.fixture
def _frozen() -> Iterator[None]:
    """Exclude existing objects from garbage collection, as the server does when it starts."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_frozen")
def test_long_history_is_prepared_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither normalization nor recognition of many turns blocks the event loop."""
    main_thread = threading.get_ident()

    def render(*args: object) -> None:
        assert threading.get_ident() != main_thread
        raise ContextOverflow("too long")

    monkeypatch.setattr("dovetail.prompt.renderer.PromptRenderer.render", render)
    turns = [{"role": role, "content": "x"} for _ in range(3000) for role in ("user", "assistant")]
    body = {"model": NAME, "messages": [*turns, {"role": "user", "content": "x"}]}

    async def scene() -> None:
        async with serving() as stage:
            longest, last = 0.0, time.thread_time()  # other processes do not count
            path, data = "/v1/chat/completions", json.dumps(body).encode()
            request = asyncio.create_task(stage.request("POST", path, data))
            while not request.done():
                await asyncio.sleep(0)
                now = time.thread_time()
                longest, last = max(longest, now - last), now
            reply = await request
            assert longest < 0.3  # of CPU time; all steps together take longer
            assert reply.status == 400
            assert reply.json["error"]["code"] == "context_length_exceeded"

    run(scene)


def test_overflow_states_the_limit() -> None:
    class Bytes(UnknownTokenizer):
        def bytes_of(self, id: int) -> bytes:
            return b"x"

        def encode_plain(self, text: str) -> list[int]:
            self.text = text
            return []

        def decode(self, ids: list[int]) -> str:
            return self.text

    with pytest.raises(ContextOverflow, match="prompt is too long: 1000 tokens > 99 maximum"):
        check_prompt_fits(next(requests("x" * 1000)), Bytes(), 99)  # type: ignore[arg-type]
