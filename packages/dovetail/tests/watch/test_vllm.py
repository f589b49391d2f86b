"""Watch mode with a real vLLM: unchanged bytes, and a report that vLLM's counts confirm."""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from http_fixture import run
from vllm_environment import NAME, REAL, Vllm, shared_vllm
from watch_fixture import Seen, listening, observing, pieces
from watch_process import watching

pytestmark = REAL

LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
#: The prompt contains tools; the server was started without a tool call parser.
NO_CALLS: dict[str, Any] = {"tools": [LOOK_UP], "tool_choice": "none"}


@pytest.fixture(scope="module")
def vllm(pytestconfig: pytest.Config) -> Vllm:
    return shared_vllm(pytestconfig)


def post(path: str, body: Any) -> bytes:
    sent = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent


def requests() -> Iterator[bytes]:
    """Send one request of each kind on one connection."""
    hello = [{"role": "user", "content": "Hello! " * 50}]
    chat = {"model": NAME, "messages": hello, "max_tokens": 8, "seed": 1}
    yield b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
    yield b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"
    yield post("/v1/chat/completions", chat)
    yield post("/v1/chat/completions", {**chat, "stream": True, **NO_CALLS})
    yield post("/v1/messages", chat)
    yield post("/v1/messages", {**chat, "stream": True})
    short = {"model": NAME, "input": "Hi!", "max_output_tokens": 8}
    yield post("/v1/responses", short)
    yield post("/v1/responses", {**short, "stream": True})
    yield post("/v1/nowhere", {})
    last = post("/v1/chat/completions", {"model": "another", "messages": hello})
    yield last.replace(b"Host: a", b"Host: a\r\nConnection: close", 1)


def test_bytes_of_both_sides_are_unchanged(vllm: Vllm) -> None:
    """A proxy between watch mode and vLLM records the actual bytes."""
    requested, responded = bytearray(), bytearray()

    async def tap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", vllm.port)
        try:
            await asyncio.gather(
                _copy(up_reader, writer, responded), _copy(reader, up_writer, requested)
            )
        finally:
            up_writer.transport.abort()

    async def scene() -> None:
        seen, chance = Seen(), random.Random(3)
        async with listening(tap) as port, observing(port, seen) as (tee, own):
            reader, writer = await asyncio.open_connection("127.0.0.1", own)
            sent = b"".join(requests())
            received = asyncio.create_task(reader.read(-1))
            for piece in pieces(sent, chance):
                writer.write(piece)
                await writer.drain()
            responses = await received
            writer.close()
        assert bytes(requested) == sent
        assert bytes(responded) == responses
        assert not tee.unobserved
        assert [exchange.status for exchange in seen.exchanges] == [200] * 6 + [404]
        assert tee.other_exchanges == 3

    run(scene)


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray
) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            seen += data
            writer.write(data)
            await writer.drain()
        writer.write_eof()


def test_token_counts_equal_those_of_vllm(vllm: Vllm, tmp_path: Path) -> None:
    """The model folder is the one that vLLM reports; token ids are those that it returns."""
    report_path = tmp_path / "report.json"
    history: list[dict[str, Any]] = [{"role": "system", "content": "You look things up. " * 60}]
    with watching(vllm.url, tmp_path, "--json", report_path) as watch:
        for at in range(4):
            history.append({"role": "user", "content": f"Number {at}?"})
            body = {
                "model": NAME,
                "messages": history,
                "max_tokens": 24,
                "temperature": 1.0,
                "seed": at,
                **NO_CALLS,
                "return_token_ids": True,
            }
            response = watch.post("/v1/chat/completions", body)
            message = response["choices"][0]["message"]
            history.append({"role": "assistant", "content": message["content"] or "-"})
    report = json.loads(report_path.read_text())
    assert [one["basis"] for one in report["exchanges"]] == ["confirmed"] * 4
    for one in report["exchanges"]:
        assert one["served"]["total"] == one["prompt_tokens"]
        # vLLM caches the common prefix of the two prompts, in complete blocks.
        assert one["cached"] is not None
        assert one["cached"] <= one["served"]["kept"] or one["place"] == 1
        assert one["cached"] >= one["served"]["kept"] - 64
    assert len(report["sessions"]) == 1


def test_counts_are_confirmed_without_token_ids(vllm: Vllm, tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    with watching(vllm.url, tmp_path, "--json", report_path) as watch:
        for stream in (False, True):
            body = {
                "model": NAME,
                "messages": [{"role": "user", "content": "Tell me."}],
                "max_tokens": 8,
                "stream": stream,
                **({"stream_options": {"include_usage": True}} if stream else {}),
            }
            assert watch.request("POST", "/v1/chat/completions", body).status == 200
    report = json.loads(report_path.read_text())
    assert [one["basis"] for one in report["exchanges"]] == ["confirmed"] * 2


def test_fix_mode_serves_requests_and_forwards_the_rest(vllm: Vllm, tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    hello = {"messages": [{"role": "user", "content": "Hello! " * 40}], "max_tokens": 8}
    with watching(vllm.url, tmp_path, "--fix", "--json", report_path) as watch:
        for _ in range(2):
            response = watch.post("/v1/messages", {"model": NAME, **hello})
        assert response["usage"]["cache_read_input_tokens"] > 0  # as vLLM itself reports
        theirs = watch.request("POST", "/v1/messages", {"model": "another", **hello})
        assert theirs.status == 404
        assert b"another" in theirs.body
        assert watch.request("GET", "/version").json["version"]  # a path that only vLLM has
    report = json.loads(report_path.read_text())
    assert [one["fixed"] for one in report["exchanges"]] == [True, True, False]
    assert [one["basis"] for one in report["exchanges"][:2]] == ["confirmed"] * 2
