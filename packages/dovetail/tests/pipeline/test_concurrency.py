"""Prompts of long texts are built in threads with the same result."""

import asyncio
import threading
from typing import Any

import pytest
from http_fixture import NAME, run, serving, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.concurrency import MIN_HUGE_SIZE, MIN_OFFLOAD_SIZE, run_in_thread
from dovetail.pipeline.preparation import ChatPreparer
from dovetail_model import Request, TextBlock, ToolSpec, Turn
from dovetail_tokenizers import HfTokenizer

LONG = "One word. " * (MIN_OFFLOAD_SIZE // 8)
GO = {"role": "user", "content": "Go."}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
ENDPOINTS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "compact": "/v1/responses/compact",
    "count": "/v1/messages/count_tokens",
    "input_tokens": "/v1/responses/input_tokens",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "result": "/v1/messages",
    "system": "/v1/messages",
    "tokenize": "/tokenize",
    "tokenize chat": "/tokenize",
    "tool": "/v1/messages",
}


def _body(name: str, text: str) -> dict[str, Any]:
    """Build a request with a text."""
    if name in ("compact", "input_tokens", "responses"):
        return {"input": text}
    if name in ("completions", "tokenize"):
        return {"prompt": text}
    if name == "result":
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": text}
        loop = [{"role": "assistant", "content": [CALL]}, {"role": "user", "content": [result]}]
        return {"messages": [GO, *loop], "max_tokens": 9}
    if name == "system":
        return {"messages": [GO], "max_tokens": 9, "system": text}
    if name == "tool":
        tool = {"name": "f", "input_schema": {"type": "object", "description": text}}
        return {"messages": [GO], "max_tokens": 9, "tools": [tool]}
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 9}


@pytest.fixture
def encoded_by(monkeypatch: pytest.MonkeyPatch) -> set[threading.Thread]:
    """Record the threads in which the library encodes a long text."""
    seen: set[threading.Thread] = set()
    plain = HfTokenizer._encode_with_library

    def record_thread(self: HfTokenizer, text: str, first: bool) -> list[int]:
        if len(text) >= len(LONG):
            seen.add(threading.current_thread())
        return plain(self, text, first)

    monkeypatch.setattr(HfTokenizer, "_encode_with_library", record_thread)
    return seen


@pytest.mark.parametrize("name", ENDPOINTS)
def test_no_endpoint_encodes_a_long_text_on_the_loop(
    name: str, encoded_by: set[threading.Thread]
) -> None:
    body = _body(name, f"{name}: {LONG}")  # a text that is not cached

    async def scene() -> None:
        async with serving() as stage:
            reply = await stage.request("POST", ENDPOINTS[name], {"model": NAME, **body})
            assert reply.status in (200, 400)  # the window is small

    run(scene)
    assert encoded_by
    assert threading.current_thread() not in encoded_by


def test_many_tokens_are_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    plain = HfTokenizer.decode

    def decode(self: HfTokenizer, ids: Any) -> str:
        seen.add(threading.current_thread())
        return plain(self, ids)

    monkeypatch.setattr(HfTokenizer, "decode", decode)

    async def scene() -> None:
        async with serving() as stage:
            ids = tiny_model().tokenizer.encode(LONG)
            seen.clear()
            body = {"model": NAME, "tokens": ids}
            assert (await stage.request("POST", "/detokenize", body)).json == {"prompt": LONG}
            refused = await stage.request("POST", "/detokenize", {**body, "tokens": [*ids, -1]})
            assert refused.status == 400
            body_with_strings = {"model": NAME, "prompt": LONG, "return_token_strs": True}
            tokenized = (await stage.request("POST", "/tokenize", body_with_strings)).json
            assert (tokenized["tokens"], "".join(tokenized["token_strs"])) == (ids, LONG)

    run(scene)
    assert seen
    assert threading.current_thread() not in seen


def test_short_work_runs_without_a_thread() -> None:
    async def main() -> None:
        here = threading.current_thread()
        assert await run_in_thread(MIN_OFFLOAD_SIZE - 1, threading.current_thread) is here
        assert await run_in_thread(MIN_OFFLOAD_SIZE, threading.current_thread) is not here

    asyncio.run(main())


def test_huge_work_does_not_delay_other_work() -> None:
    over = threading.Event()

    async def main() -> None:
        huge = [asyncio.ensure_future(run_in_thread(MIN_HUGE_SIZE, over.wait)) for _ in range(3)]
        assert await run_in_thread(MIN_HUGE_SIZE - 1, lambda: "done") == "done"
        over.set()
        assert await asyncio.gather(*huge) == [True] * 3

    asyncio.run(main())


def test_exceptions_of_the_work_are_raised() -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(run_in_thread(MIN_OFFLOAD_SIZE, fail))


def _preparer(min_offload_chars: int = MIN_OFFLOAD_SIZE) -> ChatPreparer:
    return ChatPreparer(
        tiny_model(),
        Ledger(MemoryLedgerStore()),
        Keyring([bytes(32)]),
        min_offload_chars=min_offload_chars,
    )


async def _prompts(requests: list[Request], min_size: int) -> list[list[int]]:
    """Return the prompts of concurrent requests."""
    preparer = _preparer(min_offload_chars=min_size)
    made = await asyncio.gather(*map(preparer.prepare, requests))
    return [one.prompt.ids.tolist() for one in made]


TEXTS = st.text(max_size=30) | st.sampled_from(["<|im_end|>", "<think>", "a\nb", "x" * 5000])
TOOLS = tuple(ToolSpec(f"tool_{n}", "Does it.", {"type": "object"}) for n in range(20))


@settings(max_examples=10, deadline=None)
@given(
    conversations=st.lists(st.lists(TEXTS.filter(str.strip), min_size=1, max_size=4), max_size=8)
)
def test_concurrent_prompts_equal_sequential_prompts(
    conversations: list[list[str]],
) -> None:
    requests = [
        Request("m", tuple(Turn("user", (TextBlock(text),)) for text in texts), tools=TOOLS)
        for texts in conversations
    ]
    in_threads = asyncio.run(_prompts(requests, min_size=0))
    assert in_threads == [asyncio.run(_prompts([one], min_size=1 << 60))[0] for one in requests]
