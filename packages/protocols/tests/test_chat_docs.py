"""The page on Chat Completions names all fields and errors, and its example works."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dovetail_protocols import SseReader
from dovetail_protocols.chat.wire import ChatMessage, ChatRequest, StreamOptions
from dovetail_protocols.completions.wire import CompletionRequest
from dovetail_protocols.openai_error import ERROR_KINDS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "apis" / "chat.md").read_text(encoding="utf-8")
PATHS = set(re.findall(r"`([^`\n]+)`", PAGE))
CODE = PATHS | {name for path in PATHS for name in path.split(".")}


@pytest.mark.parametrize("wire", [ChatRequest, ChatMessage, StreamOptions, CompletionRequest])
def test_page_names_every_request_field(wire: type[msgspec.Struct]) -> None:
    inner = {"role", "refusal"}  # of a message: described in other words
    assert not [name for name in wire.__struct_fields__ if name not in CODE | inner]


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_page_names_every_error(kind: str) -> None:
    status, type, code = ERROR_KINDS[kind]
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {status} |"))
    assert f"`{type}`" in row
    assert (f"`{code}`" if code else "null") in row


def test_example_converts_a_chat_stream_to_a_messages_stream() -> None:
    script = ROOT / "examples" / "chat_to_messages.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=True)
    events = SseReader().feed(done.stdout)
    data = [msgspec.json.decode(event.data) for event in events]
    blocks = [each["content_block"]["type"] for each in data if "content_block" in each]
    assert blocks == ["thinking", "tool_use"] * 2
    assert [data[0]["type"], data[-1]["type"]] == ["message_start", "message_stop"]
    assert data[-2]["delta"]["stop_reason"] == "tool_use"
