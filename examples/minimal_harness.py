"""A coding agent in about 60 lines, on the Anthropic SDK.

    python examples/minimal_harness.py http://127.0.0.1:8000 MODEL "Write hello.py and run it."

The model gets two tools, reads and writes in the current folder, and works until it stops calling
tools. The loop returns each assistant turn unchanged: its thinking blocks carry a signature, with
which the server restores the turn's exact tokens.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic

SYSTEM = "You are a coding agent. Use the tools. Stop when the task is done."
TOOLS: list[Any] = [
    {
        "name": "write_file",
        "description": "Create or replace a file.",
        "input_schema": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
        },
    },
    {
        "name": "run_command",
        "description": "Run a shell command and return its output.",
        "input_schema": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
]


def run_tool(name: str, arguments: dict[str, Any]) -> str:
    if name == "write_file":
        Path(arguments["path"]).write_text(arguments["content"])
        return f"wrote {len(arguments['content'])} characters"
    done = subprocess.run(
        arguments["command"], shell=True, capture_output=True, text=True, timeout=60, check=False
    )
    return f"exit status {done.returncode}\n{done.stdout}{done.stderr}"


def main(base_url: str, model: str, task: str) -> None:
    client = anthropic.Anthropic(base_url=base_url, api_key="unused")
    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        with client.messages.stream(
            model=model, system=SYSTEM, tools=TOOLS, messages=messages, max_tokens=4096
        ) as stream:
            for text in stream.text_stream:
                print(text, end="", flush=True)
            turn = stream.get_final_message()
        print()
        messages.append({"role": "assistant", "content": turn.content})
        calls = [block for block in turn.content if block.type == "tool_use"]
        if not calls:
            return
        results = []
        for call in calls:
            print(f"[{call.name}] {call.input}")
            output = run_tool(call.name, call.input)
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": output})
        messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    main(*sys.argv[1:4])
