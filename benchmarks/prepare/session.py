"""A session as a client would hold it, grown turn by turn.

The model is scripted, everything else is real: bodies as the client writes them, our answers sent
back with their seals, a real template and tokenizer.
"""

from itertools import count
from typing import Any

import msgspec

from benchmarks.prepare.dialects import Dialect
from benchmarks.prepare.matter import TOOL, Matter
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail_model import Request
from dovetail_protocols import DecodeCache
from dovetail_tokenizers import Tokenizer

END = "<|im_end|>"
LOOP = 8  # tool steps between two questions of the user


class Session:
    """One conversation with a scripted model."""

    def __init__(self, dialect: Dialect, preparer: ChatPreparer, tokenizer: Tokenizer) -> None:
        self.preparer = preparer
        self.memory = DecodeCache()
        self.headers = {**dialect.headers, dialect.session: "session-1"}
        self._dialect = dialect
        self._tokenizer = tokenizer
        self._matter = Matter()
        self._numbers = count()
        self._items: list[dict[str, Any]] = []
        self._steps = 0
        self.ask()

    def body(self) -> bytes:
        """The next request."""
        return msgspec.json.encode(self._dialect.body(self._matter.offer, self._items))

    def decode(self, body: bytes, memory: DecodeCache | None) -> Request:
        return self._dialect.codec.decode(body, self.headers, memory)

    async def prepare(self) -> PreparedRequest:
        return await self.preparer.prepare(self.decode(self.body(), self.memory))

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
        command = msgspec.json.encode(self._matter.command()).decode()
        call = f'<tool_call>\n{{"name": "{TOOL}", "arguments": {command}}}\n</tool_call>'
        answer = await self._say(call)
        (id,) = self._dialect.call_ids(answer)
        self._items += self._dialect.result(id, self._matter.result())

    async def answer(self) -> None:
        """The model says that it is done."""
        await self._say(self._matter.prose())

    def ask(self) -> None:
        self._items += self._dialect.question(self._matter.prose())

    async def _say(self, text: str) -> dict[str, Any]:
        """The model thinks and says something: the answer as the client gets it."""
        prepared = await self.prepare()
        codec, prefix = self._dialect.codec, self._dialect.codec.call_id_prefix
        ids = self._tokenizer.encode(f"<think>\n{self._matter.prose()}\n</think>\n\n{text}")
        generation = self.preparer.create_generation(prepared, lambda: self._new_id(prefix))
        generation.feed([*ids, self._tokenizer.controls[END]])
        generation.finish("stop")
        await self.preparer.record(prepared, generation)
        said = [generation.message()]
        answer = codec.encode_message(prepared.request, said, self._new_id, lambda: 0.0)
        told: dict[str, Any] = msgspec.json.decode(answer)
        self._items += self._dialect.replay(told)
        return told

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers):024}"
