"""Turns of other servers, written in the notation of the model and in their order."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from dovetail.prompt.messages import ToolNames
from dovetail.prompt.turn_writer import TurnWriter, is_interleaved
from dovetail_model import (
    Block,
    ImageBlock,
    OutputBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolSpec,
    Turn,
)
from dovetail_parsers import families, opens_reasoning, parse

TOOLS = (
    ToolSpec("run", "", {"type": "object", "properties": {"command": {"type": "string"}}}),
    ToolSpec("edit", "", {"type": "object", "properties": {"lines": {"type": "array"}}}),
)


def _as_it_is(text: str) -> str:
    return text


def _call(name: str, **arguments: Any) -> ToolCallBlock:
    return ToolCallBlock("", name, json.dumps(arguments, ensure_ascii=False))


THINK, CALL = ReasoningBlock("First é 漢."), _call("run", command="ls -la")
AGAIN, EDIT = ReasoningBlock("Second."), _call("edit", lines=[1, 2])
INTERLEAVED = (THINK, CALL, AGAIN, EDIT)

Pair = tuple[str | None, str | None]
#: The pairs of tool parser and reasoning parser of the families.
PAIRS: list[Pair] = sorted(
    {(family.tool_parser, family.reasoning_parser) for family in families() if family.tool_parser},
    key=str,
)
THINKERS = [pair for pair in PAIRS if pair[1] is not None]
#: Notations in which a turn with calls contains only calls.
CALLS_ALONE = {"pythonic", "xlam"}


def _write(pair: Pair, blocks: tuple[Block, ...], end: str = "") -> str | None:
    return TurnWriter(*pair).write(Turn("assistant", blocks), ToolNames(TOOLS), _as_it_is, end)


def _read(pair: Pair, text: str, *, in_reasoning: bool = False) -> list[tuple[str, Any]]:
    message = parse(
        text,
        tool_parser=pair[0],
        reasoning_parser=pair[1],
        tools=TOOLS,
        in_reasoning=in_reasoning,
    )
    return _seen(message.blocks)


def _seen(blocks: Sequence[OutputBlock]) -> list[tuple[str, Any]]:
    return [
        (block.name, json.loads(block.arguments))
        if isinstance(block, ToolCallBlock)
        else (block.type, block.text.strip())
        for block in blocks
    ]


@pytest.mark.parametrize("pair", THINKERS, ids=str)
def test_interleaved_reasoning_and_calls_stay_in_order(pair: Pair) -> None:
    text = _write(pair, INTERLEAVED)
    assert text is not None
    assert _read(pair, text) == _seen(INTERLEAVED)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_text_and_calls(pair: Pair) -> None:
    blocks = (TextBlock("I will look."), CALL)
    text = _write(pair, blocks)
    if pair[0] in CALLS_ALONE:
        assert text is None
        return
    assert text is not None
    assert _read(pair, text)[-1] == _seen(blocks)[-1]
    assert "I will look." in text


@pytest.mark.parametrize("pair", THINKERS, ids=str)
@pytest.mark.parametrize("first", [THINK, TextBlock("Sure.")], ids=["thought", "answer"])
def test_reasoning_opened_by_the_prompt_is_not_opened_again(pair: Pair, first: Any) -> None:
    """The prompt ends with the start marker: the written turn continues from there."""
    opener = _write(pair, (THINK,))
    assert opener is not None
    end = opener[: opener.index(THINK.text)]
    if not opens_reasoning(end, *pair):
        pytest.skip("no prompt of this family opens a thought so")
    blocks = (first, TextBlock("So it is."))
    text = _write(pair, blocks, f"<|assistant|>{end}")
    assert text is not None
    assert not text.startswith(end)
    seen = _read(pair, text, in_reasoning=True)
    reasoning = "".join(text for kind, text in seen if kind == "reasoning")
    written = "".join(text for kind, text in seen if kind == "text")
    expected = (THINK.text, "So it is.") if first is THINK else ("", "Sure.So it is.")
    assert (reasoning, written) == expected


@pytest.mark.parametrize("pair", THINKERS, ids=str)
def test_reasoning_that_was_not_opened_is_not_closed(pair: Pair) -> None:
    blocks = (TextBlock("Sure."),)
    assert _write(pair, blocks, "<|assistant|>") == _write(pair, blocks)


def test_without_a_family_only_text_can_be_written() -> None:
    assert _write((None, None), (TextBlock("A."), TextBlock("B."))) == "A.B."
    assert _write((None, None), (TextBlock("A."), CALL)) is None
    assert _write((None, None), (THINK,)) is None


def test_reasoning_without_a_reasoning_parser() -> None:
    """Without a reasoning parser no reasoning is written."""
    text = _write(("hermes", None), INTERLEAVED)
    assert text is None or "<think>" not in text


HERMES = ("hermes", "qwen3")


@pytest.mark.parametrize(
    ("call", "written"),
    [
        (ToolCallBlock("", "patch", "*** x", custom=True), {"input": "*** x"}),
        (ToolCallBlock("", "run", ""), {}),
        (ToolCallBlock("", "run", '{"command": "cu'), {"input": '{"command": "cu'}),
        (ToolCallBlock("", "run", '{"b": 1, "a": "\\u00e9"}'), {"b": 1, "a": "é"}),
    ],
)
def test_arguments_are_written_as_an_object(call: ToolCallBlock, written: dict[str, Any]) -> None:
    text = _write(HERMES, (call,))
    assert text is not None
    assert _read(HERMES, text) == [(call.name, written)]
    assert "\\u00e9" not in text


def test_tools_have_their_prompt_names() -> None:
    names = ToolNames([ToolSpec("read", namespace="fs", shown_as="fs__read")])
    call = ToolCallBlock("", "read", "{}", namespace="fs")
    text = TurnWriter(*HERMES).write(Turn("assistant", (call,)), names, _as_it_is, "")
    assert text is not None
    assert _read(HERMES, text) == [("fs__read", {})]


def test_every_text_is_escaped() -> None:
    blocks = (ReasoningBlock("<x>"), TextBlock("<x>"), _call("run", command="<x>"))
    text = TurnWriter(*HERMES).write(
        Turn("assistant", blocks), ToolNames(()), lambda text: text.replace("<x>", "<!x>"), ""
    )
    assert text is not None
    assert text.count("<!x>") == 3
    assert "<x>" not in text


def test_blocks_that_are_not_output_are_omitted() -> None:
    plain = _write(HERMES, (TextBlock("A."),))
    assert _write(HERMES, (ImageBlock(url="x"), ReasoningBlock(""), TextBlock("A."))) == plain


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (INTERLEAVED, True),
        ((CALL, TextBlock("Then.")), True),
        ((THINK, CALL, EDIT), False),
        ((THINK, TextBlock("Look."), AGAIN, CALL), False),
        ((THINK, TextBlock("Look.")), False),
        ((), False),
    ],
)
def test_interleaved(blocks: tuple[Block, ...], expected: bool) -> None:
    assert is_interleaved(Turn("assistant", blocks)) is expected


class TestPartial:
    """Turns that the model is to continue."""

    @staticmethod
    def _write(*blocks: Block) -> str | None:
        writer = TurnWriter("hermes", "qwen3")
        turn = Turn("assistant", blocks)
        return writer.write_partial(turn, ToolNames(TOOLS), _as_it_is, "assistant\n")

    def test_reasoning_stays_open(self) -> None:
        text = self._write(ReasoningBlock("So far"))
        assert text is not None
        assert text.endswith("So far")

    @pytest.mark.parametrize("sealed", [ReasoningBlock("", seal="foreign"), TextBlock("")])
    def test_block_without_text_at_the_end_is_skipped(self, sealed: Block) -> None:
        assert self._write(TextBlock("It is"), sealed) == self._write(TextBlock("It is"))
        assert self._write(sealed) is None
