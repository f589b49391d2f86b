"""vLLM's parsers, called as vLLM's server calls them. Needs an interpreter that has vLLM.

The tokenizer is a fake, since the vocabularies of the models cannot be downloaded: it has the
markers that are one token in the real vocabulary, and treats each chunk as one token.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import texts
from benchmarks.against_vllm import CAP, LONG, SHORT, Row, Rows
from benchmarks.measure import CHUNK, Stream, Timed, measure
from benchmarks.vllm_pairs import PAIRS, Pair
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock
from dovetail_parsers import families

# The parsers need neither vision nor audio, and these wheels often do not match the torch version.
sys.modules.update(dict.fromkeys(("torchvision", "torchaudio", "torchcodec")))  # type: ignore[arg-type]

WINDOW = 64  # calls whose texts are built before the clock starts
QUICK = 1  # second: a long run that is faster is repeated
ROUNDS = 10

THINKING = {"thinking": True, "enable_thinking": True, "reasoning_effort": "high"}

Block = Callable[[int], OutputBlock]


def main(out: Path) -> None:
    from vllm import __version__

    logging.disable()
    rows: list[Row] = []
    failed: list[str] = []
    for pair in PAIRS:
        try:
            for block in _blocks(pair):
                rows.append(_row(pair, block))
                print(f"  {rows[-1].kind:<9}", *(f"{cell:<9}" for cell in rows[-1].cells()))
        except Exception as error:  # other versions of vLLM have other parsers
            failed.append(pair.family)
            print(f"  {pair.family}: {error!r}")
    out.write_bytes(msgspec.json.encode(Rows(__version__, rows, failed)))


def _blocks(pair: Pair) -> list[Block]:
    return [_call, _text, _reasoning] if pair.reasoning else [_call, _text]


def _call(size: int) -> OutputBlock:
    return texts.call(texts.code(size))


def _text(size: int) -> OutputBlock:
    return TextBlock(texts.prose(size))


def _reasoning(size: int) -> OutputBlock:
    return ReasoningBlock(texts.prose(size))


def _row(pair: Pair, block: Block) -> Row:
    short, long = _both(pair, block(SHORT)), _both(pair, block(LONG))
    deltas, same = short[1].outcome(block(SHORT))
    measure(short, ROUNDS)
    measure(long, 1)
    measure(long if sum(long[1].best) < QUICK * 1e9 else long[:1], 2)
    return Row(
        kind=block(SHORT).type,
        family=pair.family,
        parser=pair.reasoning if block is _reasoning else pair.tool,
        engine=short[1].engine,
        short=(short[0].us, short[1].us),
        long=(long[0].us, long[1].us),
        whole=long[1].count == long[0].count,
        deltas=deltas,
        same=same,
    )


def _both(pair: Pair, block: OutputBlock) -> tuple[Stream, "Theirs"]:
    """Split a text into the same chunks for our parser and for theirs."""
    family = next(family for family in families() if family.name == pair.family)
    tokenizer = Tokenizer(pair.tokens.split())
    pieces = tokenizer.pieces(texts.output(block, family))
    theirs = Theirs(pair, block.type == "reasoning", tokenizer, pieces)
    return Stream(partial(texts.feed, family), pieces), theirs


class Tokenizer:
    """The tokenizer methods that the parsers use."""

    all_special_tokens = ("<|end of output|>",)  # dropped by a server; not in these texts
    all_special_ids = (0,)

    def __init__(self, tokens: Sequence[str]) -> None:
        self._vocabulary = {token: i for i, token in enumerate(tokens, start=1)}
        self._ids = dict(self._vocabulary)
        self._texts = {i: token for token, i in self._ids.items()}
        self._marker = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary

    def decode(self, ids: Sequence[int] | int, **_: object) -> str:
        return "".join(self._texts[i] for i in ([ids] if isinstance(ids, int) else ids))

    def encode(self, text: str, **_: object) -> list[int]:
        return [self.id(piece) for piece in self.pieces(text)]

    def id(self, piece: str) -> int:
        found = self._ids.setdefault(piece, len(self._ids) + 1)
        self._texts[found] = piece
        return found

    def pieces(self, text: str) -> list[str]:
        """Split a text into chunks, each marker separate, as a real model generates it."""
        found: list[str] = []
        at = 0
        while at < len(text):
            marker = self._marker.search(text, at)
            end = marker.start() if marker else len(text)
            found += [text[i : min(i + CHUNK, end)] for i in range(at, end, CHUNK)]
            found += [marker[0]] if marker else []
            at = marker.end() if marker else end
        return found


class Theirs(Timed):
    """One of vLLM's parsers on one output. A run stops when it has taken `CAP` seconds.

    A parser on the newer engine has its own state and gets only the new text; the older parsers
    also get all previous text. Building those texts is the server's work and not measured.
    """

    def __init__(
        self, pair: Pair, thinks: bool, tokenizer: Tokenizer, pieces: Sequence[str]
    ) -> None:
        super().__init__(len(pieces))
        self._class = _reasoning_parser(pair.reasoning) if thinks else _tool_parser(pair.tool)
        self._thinks = thinks
        self._tokenizer = tokenizer
        self._tokens = [(piece, tokenizer.id(piece)) for piece in pieces]
        self.engine: bool = self._class.engine_based_streaming

    def run(self) -> Iterator[int]:
        _, call = self._begin()
        calls = self._calls()
        spent = self.count = 0
        while spent < CAP * 1e9 and (window := list(islice(calls, WINDOW))):
            begun = time.process_time_ns()
            for arguments in window:
                call(*arguments)
            took = time.process_time_ns() - begun
            spent += took
            self.count += len(window)
            yield took

    def outcome(self, expected: OutputBlock) -> tuple[int, bool]:
        """Return the number of deltas, and whether the output equals the input."""
        parser, call = self._begin()
        messages = [call(*arguments) for arguments in self._calls()]
        if self.engine:
            messages.append(parser.finish_streaming())
        parts = [part for message in messages if message for part in _parts(message, expected)]
        whole = "".join(parts)
        rest = "" if self._thinks else parser.get_remaining_unstreamed_args()
        wanted = texts.content(expected)[1].strip()
        return len(parts), wanted in (_value(whole, expected), _value(whole + rest, expected))

    def _begin(self) -> tuple[Any, Callable[..., Any]]:
        if self._thinks:
            parser = self._class(self._tokenizer, chat_template_kwargs=THINKING)
            return parser, parser.extract_reasoning_streaming
        parser = self._class(self._tokenizer, _request().tools)
        return parser, parser.extract_tool_calls_streaming

    def _calls(self) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of every call that the server makes for the output."""
        last = () if self._thinks else (_request(),)
        text, seen = "", list[int]()
        for piece, token in self._tokens:
            new = [token]
            if self.engine:
                yield ("", piece, piece, [], new, new, *last)
            else:
                longer, more = text + piece, [*seen, token]
                yield (text, longer, piece, seen, more, new, *last)
                text, seen = longer, more


def _parts(message: Any, expected: OutputBlock) -> Iterator[str]:
    """Yield the parts of the expected kind in one of vLLM's delta messages."""
    match expected:
        case ToolCallBlock():
            for call in message.tool_calls or ():
                if call.function and call.function.arguments:
                    yield call.function.arguments
        case TextBlock() if message.content:
            yield message.content
        case ReasoningBlock() if message.reasoning:
            yield message.reasoning


def _value(given: str, expected: OutputBlock) -> str:
    """Return the content, without white space at its ends."""
    if not isinstance(expected, ToolCallBlock):
        return given.strip()
    try:
        return str(json.loads(given)["content"]).strip()
    except (ValueError, KeyError, TypeError):
        return ""


@cache
def _request() -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import (
        ChatCompletionRequest,
    )

    function = {"name": texts.TOOL.name, "parameters": texts.TOOL.parameters}
    return ChatCompletionRequest(
        model="model",
        messages=[{"role": "user", "content": "Write it."}],
        tools=[{"type": "function", "function": function}],
        tool_choice="auto",
    )


def _tool_parser(name: str) -> Any:
    from vllm.tool_parsers import ToolParserManager

    return ToolParserManager.get_tool_parser(name)


def _reasoning_parser(name: str) -> Any:
    from vllm.reasoning import ReasoningParserManager

    return ReasoningParserManager.get_reasoning_parser(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
