"""`dovetail serve` with SGLang: a fake server, and Dynamo's mocker if it is available."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dynamo_environment import mocking
from server_process import TOKENIZERS, Running, qwen_folder, served
from sglang_fixture import MODEL_INFO, PATHS, SERVER_INFO, FakeSglang, listening

from dovetail.net.http_client import Endpoint
from dovetail_tokenizers import Tokenizer, load_tokenizer

WINDOW = 4096
CALL = '<tool_call>\n{"name": "look", "arguments": {"where":  "here"}}\n</tool_call>'
OUTPUT = f"<think>\nHow kind: 你好 🦜\n</think>\n\n{CALL}<|im_end|>"
LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {}}}


@contextmanager
def standing(stand_in: FakeSglang) -> Iterator[Endpoint]:
    """Run the fake server in a separate event loop during the block. Yields its address."""
    there, over = threading.Event(), asyncio.Event()
    found: list[tuple[Endpoint, asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        async with listening(stand_in) as endpoint:
            found.append((endpoint, asyncio.get_running_loop()))
            there.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    there.wait()
    endpoint, loop = found[0]
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    if not (TOKENIZERS / "qwen3").is_dir():
        pytest.skip("the qwen3 tokenizer is not available: run make tokenizers")
    return load_tokenizer(TOKENIZERS / "qwen3")


@pytest.mark.parametrize("repeats", [True, False])
def test_next_turn_continues_with_the_exact_ids(
    tmp_path: Path, tokenizer: Tokenizer, repeats: bool
) -> None:
    """The requests that the server received are the oracle."""
    folder, output_ids = qwen_folder(tmp_path / "model"), tokenizer.encode(OUTPUT)
    info = {**SERVER_INFO, "enable_priority_scheduling": True}
    model = {**MODEL_INFO, "model_path": str(folder), "tokenizer_path": str(folder)}
    paths = {**PATHS, "/server_info": info, "/model_info": model}
    stand_in = FakeSglang(output_ids, repeats=repeats, paths=paths)
    with (
        standing(stand_in) as there,
        served("--engine", "sglang", "--engine-url", str(there)) as it,
    ):
        first = {"role": "user", "content": "Look."}
        response = send_messages(it, [first])
        reasoning, call = response["content"]
        assert (reasoning["type"], call["input"]) == ("thinking", {"where": "here"})
        assert response["usage"]["cache_read_input_tokens"] == 1
        seen = {"type": "tool_result", "tool_use_id": call["id"], "content": "nothing"}
        again = {"role": "assistant", "content": response["content"]}
        send_messages(it, [first, again, {"role": "user", "content": [seen]}])
    one, two = stand_in.requests
    previous = [*one["input_ids"], *output_ids]
    assert two["input_ids"][: len(previous)] == previous
    assert one["session_id"] == two["session_id"]
    assert [body["priority"] for body in (one, two)] == [7, 7]


def send_messages(running: Running, messages: list[Any]) -> Any:
    body = {"model": "tiny", "max_tokens": 100, "messages": messages, "tools": [LOOK]}
    body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    headers = {"x_session_id": "one", "x_dynamo_request_priority": "7"}
    return running.post("/v1/messages", body, anthropic_version="2023-06-01", **headers)


@pytest.mark.sglang
def test_three_apis_with_the_mocker(tmp_path: Path) -> None:
    with mocking(tmp_path, "qwen3-mock", WINDOW) as there:
        remote = ("--engine", "sglang", "--engine-url", str(there))
        with served(*remote, "--tokenizer", tmp_path / "model") as it:
            body: dict[str, Any] = {"model": "qwen3-mock"}
            turn = [{"role": "user", "content": "hi"}]
            response = it.post("/v1/messages", {**body, "max_tokens": 40, "messages": turn})
            assert response["usage"]["output_tokens"] == 40
            response = it.post("/v1/chat/completions", {**body, "max_tokens": 20, "messages": turn})
            assert response["usage"]["completion_tokens"] == 20
            response = it.post("/v1/responses", {**body, "max_output_tokens": 20, "input": "hi"})
            assert response["usage"]["output_tokens"] == 20
            long = [{"role": "user", "content": "hi " * WINDOW}]
            refused = it.request(
                "POST", "/v1/messages", {**body, "max_tokens": 5, "messages": long}
            )
            assert refused.status == 400
            assert "too long" in refused.json["error"]["message"]
