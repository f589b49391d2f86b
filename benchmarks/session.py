"""A session as Claude Code would hold it, for the benchmark of prompts: grown turn by turn.

The model is scripted, everything else is real: bodies as that client writes them, its seals sent
back, a real template and tokenizer.
"""

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec

from dovetail.preparation import Prepared, Preparer
from dovetail_model import CallOpen, Event, SpanEnd, ToolCallBlock
from dovetail_protocols import MESSAGES, Memory
from dovetail_tokenizers import Tokenizer

HEADERS = {"x-claude-code-session-id": "session-1", "anthropic-version": "2023-06-01"}
WORDS = """\
the of a file function return value import class self result error data list path name check
open read write if not line test fix add change call each new old size index key text type
"""
END = "<|im_end|>"
SYSTEM_WORDS, THOUGHT_WORDS, COMMAND_WORDS, RESULT_WORDS = 3000, 40, 25, 300
LOOP = 8  # tool steps between two questions of the user
TOOLS = 20


class Session:
    """One conversation with a scripted model."""

    def __init__(self, preparer: Preparer, tokenizer: Tokenizer, seed: int = 1) -> None:
        self.preparer = preparer
        self.memory = Memory()
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._words = WORDS.split()
        self._numbers = count()
        self._stop = tokenizer.controls[END]
        self._system = self._prose(SYSTEM_WORDS)
        self._tools = [self._tool(number) for number in range(TOOLS)]
        self._messages: list[dict[str, Any]] = []
        self._steps = 0
        self.ask()

    def body(self) -> bytes:
        """The next request."""
        billing = f"x-anthropic-billing-header: cc_version=2.1.197.{len(self._messages)};"
        return msgspec.json.encode(
            {
                "model": "some-org/some-model",
                "messages": self._messages,
                "system": [{"type": "text", "text": text} for text in (billing, self._system)],
                "tools": self._tools,
                "max_tokens": 32000,
                "thinking": {"type": "adaptive"},
                "stream": True,
            }
        )

    async def prepare(self) -> Prepared:
        return await self.preparer.prepare(MESSAGES.decode(self.body(), HEADERS, self.memory))

    async def grow(self) -> None:
        """One more turn: a tool step, or an answer and the user's next question."""
        self._steps += 1
        if self._steps % (LOOP + 1):
            await self.step()
        else:
            await self.answer()
            self.ask()

    async def step(self) -> None:
        """The model calls a tool and gets its result."""
        command = f'{{"command": "{self._prose(COMMAND_WORDS)}"}}'
        call = f'<tool_call>\n{{"name": "tool_3", "arguments": {command}}}\n</tool_call>'
        id = await self._say(call, [{"type": "tool_use", "name": "tool_3", "input": command}])
        result = {"type": "tool_result", "tool_use_id": id, "content": self._prose(RESULT_WORDS)}
        self._messages.append({"role": "user", "content": [result]})

    async def answer(self) -> None:
        """The model says that it is done."""
        text = self._prose(THOUGHT_WORDS)
        await self._say(text, [{"type": "text", "text": text}])

    def ask(self) -> None:
        self._messages.append({"role": "user", "content": self._prose(THOUGHT_WORDS)})

    async def _say(self, text: str, shown: list[dict[str, Any]]) -> str:
        """The model thinks and says something; the id of its call."""
        prepared = await self.prepare()
        thought = self._prose(THOUGHT_WORDS)
        ids = self._tokenizer.encode(f"<think>\n{thought}\n</think>\n\n{text}")
        generation = self.preparer.generation(prepared, lambda: f"toolu_{next(self._numbers):020}")
        events = [*generation.feed([*ids, self._stop]), *generation.finish("stop")]
        await self.preparer.record(prepared, generation)
        id = next(_call_ids(events), "")
        for block in generation.message().blocks:
            if isinstance(block, ToolCallBlock):
                shown = [{**shown[0], "id": id, "input": msgspec.json.decode(block.arguments)}]
        seal = next(e.seal for e in events if isinstance(e, SpanEnd) and e.seal)
        thinking = {"type": "thinking", "thinking": thought, "signature": seal}
        self._messages.append({"role": "assistant", "content": [thinking, *shown]})
        return id

    def _prose(self, words: int) -> str:
        return " ".join(self._random.choice(self._words) for _ in range(words))

    def _tool(self, number: int) -> dict[str, Any]:
        command = {"type": "string", "description": self._prose(40)}
        return {
            "name": f"tool_{number}",
            "description": self._prose(150),
            "input_schema": {
                "type": "object",
                "properties": {"command": command},
                "required": ["command"],
            },
        }


def _call_ids(events: list[Event]) -> Iterator[str]:
    return (event.id for event in events if isinstance(event, CallOpen) and event.id)
