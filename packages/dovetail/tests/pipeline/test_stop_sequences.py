"""Stop sequences in visible text, stop tokens, and the limit of one call."""

from array import array
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.ledger.entry import LedgerEntry, unpack_ids
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.recognized_history import RecognizedHistory
from dovetail.ledger.seal import Sealer
from dovetail.pipeline.generation import Generation, OutputSpec, TurnOwner
from dovetail.pipeline.stop_sequences import StopScope, VisibleTextStops
from dovetail.prompt.prompt import HeadDigests, Prompt
from dovetail_model import (
    Event,
    Fold,
    Message,
    ReasoningBlock,
    Request,
    Sampling,
    SpanEnd,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolChoice,
    ToolSpec,
)
from dovetail_tokenizers import ByteTokenizer

BYTES = ByteTokenizer(("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"))
STOP = BYTES.controls["<|im_end|>"]
TOOL = ToolSpec("run", "", {"type": "object", "properties": {"command": {"type": "string"}}})
OWNER = TurnOwner("t", b"key", Sealer(Keyring([b"k" * 32])))
THINKS = "<think>\nEND of 漢.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "run", "arguments": {"command": "echo END"}}\n</tool_call>'


_ANY_CALL = ToolChoice()


def generate(
    text: str,
    sampling: Sampling,
    *,
    scope: StopScope = "text",
    step: int = 1,
    choice: ToolChoice = _ANY_CALL,
) -> tuple[Message, LedgerEntry, Generation]:
    """Return the message of an output, its entry, and its generation."""
    spec = OutputSpec(BYTES, frozenset({STOP}), "hermes", "qwen3", "model-1", scope)
    request = Request("m", tools=(TOOL,), sampling=sampling, tool_choice=choice)
    ids, names = BYTES.encode(text), count(1)
    prompt = Prompt(
        array("I", [1]),
        "cold",
        False,
        HeadDigests(b"s", b"t", b"w", b"h"),
        RecognizedHistory(chain=b"c" * 16),
    )
    generation = Generation(
        spec, prompt, OWNER, request, entry_id="e", new_call_id=lambda: f"call_{next(names)}"
    )
    fold, events = Fold(), []
    for at in range(0, len(ids), step):
        if not generation.stopped:
            events += generation.feed(ids[at : at + step])
    events += generation.finish("stop")
    for event in events:
        fold.add(event)
    return fold.message(), generation.build_entry(), generation


def texts(message: Message) -> list[str]:
    return [block.text for block in message.blocks if isinstance(block, TextBlock)]


def stops(*texts: str) -> Sampling:
    return Sampling(stop=texts)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_only_visible_text_is_searched(step: int) -> None:
    message, _, _ = generate(f"{THINKS}Hello.\n{CALL}<|im_end|>", stops("END"), step=step)
    reasoning, text, call = message.blocks
    assert isinstance(reasoning, ReasoningBlock)
    assert "END" in reasoning.text
    assert isinstance(text, TextBlock)
    assert isinstance(call, ToolCallBlock)
    assert "END" in call.arguments
    assert message.finish == "tool_calls"


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_text_ends_before_a_stop_sequence(step: int) -> None:
    text = f"{THINKS}Hello END of it."
    message, entry, generation = generate(f"{text}{CALL}<|im_end|>", stops("END"), step=step)
    assert [type(block) for block in message.blocks] == [ReasoningBlock, TextBlock]
    assert texts(message) == ["Hello "]
    assert message.finish == "stop_sequence"
    assert generation.stopped
    assert BYTES.decode(unpack_ids(entry.generated)) == f"{THINKS}Hello "
    assert entry.stop is None


def test_with_the_scope_output_reasoning_is_searched() -> None:
    message, entry, _ = generate(f"{THINKS}Hello.<|im_end|>", stops("END"), scope="output")
    assert message.finish == "stop_sequence"
    assert BYTES.decode(unpack_ids(entry.generated)) == "<think>\n"


def test_a_stop_sequence_does_not_reach_over_other_output() -> None:
    message, _, _ = generate(f"Hello. EN\n{CALL}\nD.<|im_end|>", stops("END"))
    assert [type(block) for block in message.blocks] == [TextBlock, ToolCallBlock, TextBlock]
    assert message.finish == "tool_calls"


def test_a_beginning_of_a_stop_sequence_at_the_end_is_text() -> None:
    message, entry, _ = generate("Hello EN<|im_end|>", stops("END"))
    assert texts(message) == ["Hello EN"]
    assert (message.finish, entry.stop) == ("stop", STOP)


def test_a_stop_sequence_at_the_beginning_leaves_no_text() -> None:
    message, entry, _ = generate(f"{THINKS}END.<|im_end|>", stops("END"))
    assert [type(block) for block in message.blocks] == [ReasoningBlock]
    assert message.finish == "stop_sequence"
    assert BYTES.decode(unpack_ids(entry.generated)).startswith("<think>\nEND of 漢.\n</think>")


PIECES = st.lists(st.sampled_from(["a", "E", "EN", "END", "ND", "\n", "漢"]), max_size=12)


@settings(max_examples=200, deadline=None)
@given(pieces=PIECES, step=st.integers(1, 5))
def test_any_chunking_gives_the_same_text(pieces: list[str], step: int) -> None:
    text = "x" + "".join(pieces)
    message, entry, _ = generate(f"{text}<|im_end|>", stops("END", "NDa"), step=step)
    ends = [at for stop in ("END", "NDa") if (at := text.find(stop)) >= 0]
    visible = text[: min(ends)] if ends else text
    assert "".join(texts(message)).strip() == visible.strip()
    assert BYTES.decode(unpack_ids(entry.generated)) == visible


def test_deltas_are_split_with_their_raw_text() -> None:
    filter = VisibleTextStops(["END"])
    events: list[Event] = [TextDelta("ab EN", " ab EN"), TextDelta("", "\n"), TextDelta("D", "D")]
    assert filter.filter(events) == [TextDelta("ab ", " ab ")]
    assert filter.found == "END"
    assert filter.filter([TextDelta("x", "x"), SpanEnd("text", "y")]) == [SpanEnd("text")]
    assert filter.filter([SpanEnd("text")]) == []


def test_stop_token_ids_end_the_output_and_are_not_shown() -> None:
    stop = BYTES.encode("!")[0]
    message, entry, generation = generate("Hello! You.", Sampling(stop_token_ids=(stop,)))
    assert texts(message) == ["Hello"]
    assert generation.stop_ids == {stop, STOP}
    assert (message.finish, entry.stop) == ("stop", None)


def test_ignored_stop_tokens_do_not_end_the_output() -> None:
    message, _, generation = generate("Hello.<|im_end|> You.", Sampling(ignore_eos=True))
    assert texts(message) == ["Hello. You."]
    assert not generation.stopped


@pytest.mark.parametrize("step", [1, 1000])
def test_without_parallel_calls_the_output_ends_before_a_second_call(step: int) -> None:
    text = f"{THINKS}{CALL}"
    message, entry, generation = generate(
        f"{text}\n{CALL}<|im_end|>", Sampling(), choice=ToolChoice(parallel=False), step=step
    )
    assert sum(isinstance(block, ToolCallBlock) for block in message.blocks) == 1
    assert (message.finish, generation.stopped) == ("tool_calls", True)
    assert BYTES.decode(unpack_ids(entry.generated)).strip() == text
    both, _, _ = generate(f"{text}\n{CALL}<|im_end|>", Sampling(), step=step)
    assert sum(isinstance(block, ToolCallBlock) for block in both.blocks) == 2


@pytest.mark.parametrize("step", [1, 1000])
def test_output_ends_before_a_call_that_is_not_allowed(step: int) -> None:
    """Also without an engine that enforces grammars."""
    text = f"{THINKS}I look.\n\n"
    choice = ToolChoice(allowed=frozenset({"other"}))
    message, entry, generation = generate(
        f"{text}{CALL}<|im_end|>", Sampling(), choice=choice, step=step
    )
    assert not any(isinstance(block, ToolCallBlock) for block in message.blocks)
    assert (message.finish, generation.stopped) == ("stop", True)
    assert BYTES.decode(unpack_ids(entry.generated)).strip() == text.strip()
    choice = ToolChoice(allowed=frozenset({"run"}))
    message, _, _ = generate(f"{text}{CALL}<|im_end|>", Sampling(), choice=choice, step=step)
    assert message.finish == "tool_calls"
