"""Session scheduling with a real vLLM whose KV cache is too small for all sessions."""

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from server_process import served
from tiny_qwen3 import tiny_qwen3
from vllm_environment import ENVIRONMENT, PYTHON, REAL

pytestmark = REAL

SESSIONS, TURNS, TOOL_SECONDS = 12, 5, 0.3
OPTIONS = (
    "dtype=float32",
    "enforce_eager=true",
    "block_size=32",
    "num_gpu_blocks_override=160",  # 5,120 tokens; the sessions need about 15,000
    "max_model_len=4096",
)
TOOL = {
    "type": "function",
    "function": {
        "name": "ls",
        "description": "list",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
        },
    },
}


def run_session(url: str, number: int) -> None:
    words = " ".join(f"w{number}x{at * 7919 % 1000}" for at in range(120))
    messages: list[dict[str, Any]] = [{"role": "user", "content": words}]
    headers = {"content-type": "application/json", "x-dynamo-session-id": f"s{number}"}
    fields = {"model": "m", "max_tokens": 60, "tools": [TOOL], "tool_choice": "required"}
    for turn in range(TURNS):
        body = json.dumps({**fields, "temperature": 0, "messages": messages}).encode()
        with urlopen(Request(f"{url}/v1/chat/completions", body, headers), timeout=300) as reply:
            message = json.load(reply)["choices"][0]["message"]
        messages.append({name: value for name, value in message.items() if value is not None})
        calls = message.get("tool_calls") or []
        if not calls:
            messages.append({"role": "user", "content": "go on"})
        for call in calls:
            result = f"file{turn} " * 20
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        time.sleep(TOOL_SECONDS)  # the tool runs


def reprefilled_tokens(folder: Path, mode: str) -> float:
    options = [f"python={os.environ[PYTHON]}", *OPTIONS]
    flags = [part for option in options for part in ("--engine-option", option)]
    named = ("--served-model-name", "m", "--session-scheduling", mode)
    with served("--engine", "vllm", str(folder), *named, *flags, environment=ENVIRONMENT) as server:
        with ThreadPoolExecutor(SESSIONS) as executor:
            list(executor.map(lambda number: run_session(server.url, number), range(SESSIONS)))
        with urlopen(f"{server.url}/metrics") as reply:
            metrics = reply.read().decode()
    (found,) = re.findall(r"^dovetail_reprefilled_tokens_total\{.*\} (\S+)$", metrics, re.MULTILINE)
    return float(found)


def test_fewer_tokens_are_prefilled_again(tmp_path: Path) -> None:
    folder = tiny_qwen3(tmp_path / "m")
    scheduled, plain = reprefilled_tokens(folder, "auto"), reprefilled_tokens(folder, "off")
    assert scheduled < plain / 2
