"""Start tools while the model is still generating: an OpenAI SDK client of `tool_call_dispatch`.

    python examples/dispatch_tools.py http://127.0.0.1:8000/v1 MODEL

With the header `x-dovetail-dispatch: tools` the server sends one extra event for each tool call, at
the moment the call is complete. The SDK returns it as a chunk with a field `tool_call`. The client
starts the tool at once; by the time the response ends, its result is often there.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


async def get_weather(city: str) -> str:
    await asyncio.sleep(0.05)  # a slow tool
    return f"18 degrees in {city}"


async def read_turn(stream: AsyncIterator[ChatCompletionChunk]) -> tuple[str, list[Any]]:
    """Read one turn. Return its text, and each complete call with the task that runs its tool."""
    text, started = "", []
    async for chunk in stream:
        if call := (chunk.model_extra or {}).get("tool_call"):
            print(f"start {call['function']['name']} {call['function']['arguments']}")
            arguments = json.loads(call["function"]["arguments"])
            started.append((call, asyncio.create_task(get_weather(**arguments))))
        elif chunk.choices and (piece := chunk.choices[0].delta.content):
            text += piece
        elif chunk.choices and chunk.choices[0].finish_reason:
            print(f"turn ended: {chunk.choices[0].finish_reason}")
    return text, started


async def main(base_url: str, model: str) -> None:
    client = AsyncOpenAI(base_url=base_url, api_key="unused")
    question = "What is the weather in Paris and in Oslo?"
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        stream = await client.chat.completions.create(
            model=model,
            messages=messages,
            tools=[TOOL],
            stream=True,
            extra_headers={"x-dovetail-dispatch": "tools"},
        )
        text, started = await read_turn(stream)
        if not started:
            print(text)
            return
        calls = [{key: call[key] for key in ("id", "type", "function")} for call, _ in started]
        messages.append({"role": "assistant", "content": text or None, "tool_calls": calls})
        for call, task in started:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": await task})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
