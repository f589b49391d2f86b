"""The model output of the scripted session, written in the notation of each family.

Twelve turns of an agent with everything that has ever broken a prefix: reasoning between calls,
unexpected white space, other alphabets, control tokens spelled out, arguments that clients rewrite,
tokens that no tokenizer would choose.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from agent_clients import TOOLS
from real_models import Pair, model
from scripted_run import OddSpelling

from dovetail.ledger.turn_digest import canonicalize_arguments
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.prompt.messages import ToolNames
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock, ToolSpec, Turn
from dovetail_parsers import markers, parse
from dovetail_tokenizers import ControlTokenGuard

Blocks = tuple[OutputBlock, ...]
_TOOLS = [ToolSpec(name, "", schema) for name, schema in TOOLS.items()]


@dataclass(frozen=True)
class ScriptTurn:
    """A turn of the script. `spelled_out`: markers in its texts are written as the real tokens."""

    blocks: Blocks
    spelled_out: bool = False


def think(text: str) -> ReasoningBlock:
    return ReasoningBlock(text)


def text_block(text: str) -> TextBlock:
    return TextBlock(text)


def call(name: str, **arguments: object) -> ToolCallBlock:
    return ToolCallBlock("", name, json.dumps(arguments, ensure_ascii=False))


# The end of a turn with calls, if it differs from that of other turns: the next role.
_BEHIND_CALLS = {"GLM-4.7": "<|observation|>", "Gemma-4": "<|tool_response>"}

RUN, EDIT = "run_command", "edit_file"
_CODE = 'def f(x):\n    return {"é": x}  \n\n\n'
SCRIPT = (
    ScriptTurn(
        (
            think("Look first.\n\nThen e\u0301 and 漢字 and 🦜👩‍🚀."),
            call(RUN, command="cd /repo && ls -la", timeout=5000.0),
        )
    ),
    ScriptTurn(
        (
            think("I see.\n"),
            text_block("Two things to check. "),
            call(EDIT, path="a.py", new=_CODE, lines=[1, 2]),
            think(" And then,\n\n"),
            call(RUN, timeout=12, command="grep -n 'x'  "),
        )
    ),
    ScriptTurn(
        (
            think("first"),
            call(RUN, command="a"),
            text_block("Now b.\n"),
            call(RUN, command="b"),
            think("third"),
            call(EDIT, path="b", new="</think> <tool_call> <|im_end|> [INST] <|end|>"),
        )
    ),
    ScriptTurn((think("Done."), text_block("\n  The answer is 42.\n\n```py\nx = 1\n```\n \n"))),
    ScriptTurn(
        (think("again"), call(RUN, command='echo "<think>"', background=True)), spelled_out=True
    ),
    ScriptTurn((call(RUN, command="no thought"),)),
    ScriptTurn((text_block("Only text: naïve café, 한국어, مرحبا."),)),
    ScriptTurn((think("Hm.  "), text_block("Another <|im_start|> one."))),
    ScriptTurn((think("\n\nx"), call(RUN), call(RUN, command="z"))),
    ScriptTurn(
        (think("y"), text_block("Text before."), call(RUN, command="cd /repo && q", timeout=1e3))
    ),
    ScriptTurn((think("1"), call(RUN, command="r"), think("2"), call(RUN, command="s"))),
    ScriptTurn((think("Final."), text_block("Bye. 👋"))),
)


def question(pair: Pair, at: int) -> str:
    """The user's text before a turn, with the model's own control tokens in it."""
    stop = model(pair).stop_strings[-1]
    return f"Question {at}: what does {stop} mean? {_marker(pair)} e\u0301🦜\n"


def result(pair: Pair, at: int, which: int) -> str:
    """Tool results: long listings, empty results, and control tokens again."""
    if (at + which) % 5 == 4:
        return ""
    listing = "\n".join(f"{at}.{which} src/file_{n}.py: {n * 37} bytes" for n in range(12))
    return f"{listing}\n{model(pair).stop_strings[0]}{_marker(pair)} 漢字\n\n"


def _marker(pair: Pair) -> str:
    known = sorted(markers(model(pair).tool_parser, model(pair).reasoning_parser))
    return known[0] if known else ""


class ScriptWriter:
    """Writes the script in the notation of one family, as far as the notation can express it."""

    def __init__(self, pair: Pair) -> None:
        self._model = found = model(pair)
        self._guard = ControlTokenGuard(found.tokenizer)
        self.writer = TurnWriter(found.tool_parser, found.reasoning_parser)
        self._markers = sorted(markers(found.tool_parser, found.reasoning_parser))
        self._odd = OddSpelling(found.tokenizer, seed=7, share=0.1)
        self._stops = {True: pair.stops[:1], False: pair.stops[:1]}
        if pair.name in _BEHIND_CALLS:
            self._stops[True] = (_BEHIND_CALLS[pair.name],)
        self.left_out: set[str] = set()
        self._ids = lru_cache(256)(self._write_ids)

    def ids(self, at: int, prepared: PreparedRequest, *, clean: bool = False) -> list[int]:
        """Return the tokens of a turn after this prompt, including its stop token.

        `clean`: with the family's usual spacing, in the tokens that a tokenizer would choose.
        """
        end = self._model.tokenizer.decode(prepared.prompt.ids[-24:])
        return self._ids(at, end, prepared.prompt.in_reasoning, clean)

    def _write_ids(self, at: int, end: str, thinking: bool, clean: bool) -> list[int]:
        line = SCRIPT[at]
        protect = _as_it_is if line.spelled_out else self._guard.protect

        def write(blocks: Blocks) -> str | None:
            return self.writer.write(Turn("assistant", blocks), ToolNames(()), protect, end)

        def read(text: str) -> object:
            return self._meaning(self._guard.reveal(text), thinking)

        text = self._fitted(line.blocks, write, read)
        if at % 2 == 0 and not clean:
            text = self._roughened(text, read)
        text, stop = self._without_stop(text, calls=bool(_calls(line.blocks)))
        ids = self._guard.encode(text, first=False)
        if at % 3 and not clean:
            ids = self._odd.split(ids, seed=at)
        return [*ids, self._model.tokenizer.controls[stop]]

    def _fitted(
        self,
        blocks: Blocks,
        write: Callable[[Blocks], str | None],
        read: Callable[[str], object],
    ) -> str:
        """Return the turn, or as much of it as the family's notation can express."""
        for left_out, shortened in self._lesser(blocks):
            text = write(shortened)
            if text is not None and read(text) == _meant(shortened):
                if left_out:
                    self.left_out.add(left_out)
                return text
        raise AssertionError(f"nothing of this turn can be written: {blocks}")

    def _lesser(self, blocks: Blocks) -> Iterator[tuple[str, Blocks]]:
        """Yield the turn with less and less content, and what was left out."""
        if self._model.reasoning_parser is None:
            blocks = tuple(b for b in blocks if not isinstance(b, ReasoningBlock))
        first = next((n for n, b in enumerate(blocks) if isinstance(b, ToolCallBlock)), len(blocks))
        if self._model.profile.many_calls:
            yield "", blocks
            front, behind = blocks[:first], blocks[first:]
            without_text = tuple(b for b in behind if not isinstance(b, TextBlock))
            yield "text between calls", front + without_text
            yield "thoughts and text between calls", front + _calls(behind)
        yield "more than one call in a turn", blocks[: first + 1]
        yield (
            "text before a call",
            tuple(b for b in blocks[: first + 1] if not isinstance(b, TextBlock)),
        )

    def _meaning(self, text: str, thinking: bool) -> object:
        """Return what a client would parse from a text, without white space around its parts."""
        message = parse(
            text,
            tool_parser=self._model.tool_parser,
            reasoning_parser=self._model.reasoning_parser,
            tools=_TOOLS,
            in_reasoning=thinking,
        )
        return _meant(message.blocks)

    def _roughened(self, text: str, read: Callable[[str], object]) -> str:
        """The same text with white space wherever it does not change the meaning."""
        meant = read(text)
        for edit in self._edits():
            edited = edit(text)
            if edited != text and read(edited) == meant:
                text = edited
        return text

    def _edits(self) -> Iterator[Callable[[str], str]]:
        yield lambda text: f"\n{text}"
        yield lambda text: f"{text} \n"
        yield lambda text: text.replace('": ', '" :  ').replace('", "', '" ,\n "')
        yield lambda text: text.replace("{", "{ ", 1)
        for marker in self._markers:
            yield lambda text, m=marker: text.replace(m, f" \n{m}")  # type: ignore[misc]
            yield lambda text, m=marker: text.replace(m, f"{m}  ")  # type: ignore[misc]

    def _without_stop(self, text: str, *, calls: bool) -> tuple[str, str]:
        """Return the text without the stop token, and the stop token that is sampled."""
        stops = self._model.stop_strings
        for end in (
            *stops,
            "<|end|>",
        ):  # gpt-oss samples another token
            if text.rstrip().endswith(end):
                stripped = text.rstrip().removesuffix(end)
                return stripped, end if end in stops else self._stops[calls][0]
        return text, (self._stops[calls] or stops[:1])[0]


@cache
def script_writer(pair: Pair) -> ScriptWriter:
    return ScriptWriter(pair)


def _as_it_is(text: str) -> str:
    return text


def _calls(blocks: Sequence[OutputBlock]) -> Blocks:
    return tuple(block for block in blocks if isinstance(block, ToolCallBlock))


def _meant(blocks: Sequence[OutputBlock]) -> object:
    """Return the blocks in their order, each in one spelling."""
    meant: list[tuple[str, ...]] = []
    for block in blocks:
        if isinstance(block, ToolCallBlock):
            meant.append(("call", block.name, canonicalize_arguments(block.arguments)))
        elif block.text.strip():
            meant.append((block.type, block.text.strip()))
    return meant
