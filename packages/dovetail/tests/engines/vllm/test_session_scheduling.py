"""Session scheduling with a real vLLM whose KV cache is too small for all sessions.

Prints the figures of `docs/scheduling.md`: run it with `-s`.
"""

import json
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from server_process import served
from tiny_qwen3 import tiny_qwen3
from vllm_environment import ENVIRONMENT, PYTHON, REAL

pytestmark = REAL

TURNS, TOOL_SECONDS = 5, 0.3
OPTIONS = ("dtype=float32", "enforce_eager=true", "block_size=32")
TOOL = {
    "type": "function",
    "function": {
        "name": "ls",
        "description": "list",
        "parameters": {
            "type": "object",
            # Random weights would not end a number: the call would be incomplete.
            "properties": {"n": {"enum": [1, 2, 3]}},
            "required": ["n"],
        },
    },
}


@dataclass(frozen=True)
class Setting:
    """Sessions, and an engine for them.

    `words`: of the first prompt, of about nine tokens each.
    `blocks`: of the KV cache, of 32 tokens.
    `step_tokens`: the most tokens that the engine computes in one step.
    """

    sessions: int
    words: int
    blocks: int
    layers: int
    step_tokens: int


#: The engine prefills several thousand tokens per second, so prefilling them again costs little.
FAST = Setting(sessions=12, words=120, blocks=160, layers=2, step_tokens=4096)
#: Prefill takes most of the time.
SLOW = Setting(sessions=12, words=320, blocks=420, layers=24, step_tokens=512)


def run_session(url: str, number: int, words: int) -> None:
    text = " ".join(f"w{number}x{at * 7919 % 1000}" for at in range(words))
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    headers = {"content-type": "application/json", "x-dynamo-session-id": f"s{number}"}
    fields = {"model": "m", "max_tokens": 60, "tools": [TOOL], "temperature": 0}
    fields |= {"parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False}}
    for turn in range(TURNS):
        # The last turn is text, as that of an agent that is done.
        choice = "none" if turn == TURNS - 1 else "required"
        body = json.dumps({**fields, "tool_choice": choice, "messages": messages}).encode()
        with urlopen(Request(f"{url}/v1/chat/completions", body, headers), timeout=300) as reply:
            message = json.load(reply)["choices"][0]["message"]
        messages.append({name: value for name, value in message.items() if value is not None})
        calls = message.get("tool_calls") or []
        assert len(calls) == 1 or turn == TURNS - 1, message
        for call in calls:
            result = f"file{turn} " * 20
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        time.sleep(TOOL_SECONDS)  # the tool runs


def measure(folder: Path, setting: Setting, mode: str) -> Callable[[str], float]:
    """Run the sessions and return a function that reads the server's counters."""
    options = [
        f"python={os.environ[PYTHON]}",
        *OPTIONS,
        f"num_gpu_blocks_override={setting.blocks}",
        f"max_num_batched_tokens={setting.step_tokens}",
        "max_model_len=4096",
    ]
    flags = [part for option in options for part in ("--engine-option", option)]
    named = ("--served-model-name", "m", "--session-scheduling", mode)
    with served("--engine", "vllm", str(folder), *named, *flags, environment=ENVIRONMENT) as server:
        began = time.monotonic()
        with ThreadPoolExecutor(setting.sessions) as executor:
            runs = [
                executor.submit(run_session, server.url, number, setting.words)
                for number in range(setting.sessions)
            ]
            for run in runs:
                run.result()
        seconds = time.monotonic() - began
        with urlopen(f"{server.url}/metrics") as reply:
            metrics = reply.read().decode()

    def counter(name: str) -> float:
        found = re.findall(rf"^dovetail_{name}\{{.*\}} (\S+)$", metrics, re.MULTILINE)
        return sum(map(float, found))

    again = counter("reprefilled_tokens_total")
    print(f"\n{setting}, {mode}: {seconds:.1f} s, {again:,.0f} tokens prefilled again")
    return counter


@pytest.mark.parametrize("setting", [FAST, SLOW], ids=["fast", "slow"])
def test_tokens_are_prefilled_again_only_where_that_is_cheaper(
    tmp_path: Path, setting: Setting
) -> None:
    folder = tiny_qwen3(tmp_path / "m", layers=setting.layers)
    plain, scheduled = (measure(folder, setting, mode) for mode in ("off", "auto"))
    name = "reprefilled_tokens_total"
    assert scheduled(name) <= plain(name) * 1.05  # equal, but for when requests arrive
    if setting is SLOW:
        assert scheduled(name) < plain(name) * 0.4  # in two runs 0.02 and 0.05
    assert scheduled("session_scheduling_suspended") == (setting is FAST)
    waits = scheduled("session_wait_seconds_count")
    assert waits == setting.sessions * TURNS
