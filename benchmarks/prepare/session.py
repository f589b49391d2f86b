"""A client's session that grows turn by turn.

The model is scripted, everything else is real: bodies as the client writes them, our responses
sent back with their seals, a real template and tokenizer.
"""

from itertools import count
from typing import Any

import msgspec

from benchmarks.prepare.dialects import Dialect
from benchmarks.prepare.sample_texts import TOOL, SampleTexts
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail_model import Request
from dovetail_protocols import DecodeCache
from dovetail_tokenizers import Tokenizer

END = "<|im_end|>"
LOOP = 8  # tool steps between two questions of the user


class Session:
    """One conversation with a scripted model."""

    def __init__(
        self, dialect: Dialect, preparer: ChatPreparer, tokenizer: Tokenizer, seed: int = 1
    ) -> None:
        self.preparer = preparer
        self.memory = DecodeCache()
        self.headers = {**dialect.headers, dialect.session: "session-1"}
        self._dialect = dialect
        self._tokenizer = tokenizer
        self._texts = SampleTexts(seed)
        self._numbers = count()
        self._items: list[dict[str, Any]] = []
        self._steps = 0
        self.add_question()

    def body(self) -> bytes:
        """Return the next request."""
        return msgspec.json.encode(self._dialect.body(self._texts.offer, self._items))

    def decode(self, body: bytes, memory: DecodeCache | None) -> Request:
        return self._dialect.codec.decode(body, self.headers, memory)

    async def prepare(self) -> PreparedRequest:
        return await self.preparer.prepare(self.decode(self.body(), self.memory))

    async def grow(self) -> None:
        """Add a turn: a tool step, or a final message and the user's next question."""
        self._steps += 1
        if self._steps % (LOOP + 1):
            await self.step()
        else:
            await self.respond()
            self.add_question()

    async def step(self) -> None:
        """Add a tool call of the model and its result."""
        command = msgspec.json.encode(self._texts.command()).decode()
        call = f'<tool_call>\n{{"name": "{TOOL}", "arguments": {command}}}\n</tool_call>'
        response = await self._generate(call)
        (id,) = self._dialect.call_ids(response)
        self._items += self._dialect.result(id, self._texts.result())

    async def respond(self) -> None:
        """Add a final text of the model."""
        await self._generate(self._texts.prose())

    def add_question(self) -> None:
        self._items += self._dialect.question(self._texts.prose())

    async def _generate(self, text: str) -> dict[str, Any]:
        """Generate reasoning and this text, and return the response as the client receives it."""
        prepared = await self.prepare()
        codec, prefix = self._dialect.codec, self._dialect.codec.call_id_prefix
        ids = self._tokenizer.encode(f"<think>\n{self._texts.prose()}\n</think>\n\n{text}")
        generation = self.preparer.create_generation(prepared, lambda: self._new_id(prefix))
        generation.feed([*ids, self._tokenizer.controls[END]])
        generation.finish("stop")
        await self.preparer.record(prepared, generation)
        messages = [generation.message()]
        body = codec.encode_message(prepared.request, messages, self._new_id, lambda: 0.0)
        response: dict[str, Any] = msgspec.json.decode(body)
        self._items += self._dialect.replay(response)
        return response

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers):024}"
