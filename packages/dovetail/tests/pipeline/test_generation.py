"""One generation: the events of its tokens, and its ledger entry."""

import re
from array import array
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_models import PAIRS, Pair, model, require
from scripted_run import OddSpelling

from dovetail.ledger.cache import SharedTokenIds
from dovetail.ledger.entry import FINISH_INTERRUPTED, LedgerEntry, unpack_ids
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.recognized_history import RecognizedHistory
from dovetail.ledger.seal import Sealer, SealPayload, read_entry_id
from dovetail.ledger.turn_digest import digest_turn, extend_chain
from dovetail.pipeline.generation import Generation, OutputSpec, TurnOwner
from dovetail.prompt.prompt import HeadDigests, Prompt
from dovetail_model import (
    CallClose,
    Event,
    Finish,
    ReasoningBlock,
    Request,
    Sampling,
    SpanEnd,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolSpec,
    Turn,
)
from dovetail_tokenizers import ByteTokenizer, Tokenizer

CONTROLS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>")
BYTES = ByteTokenizer(CONTROLS)
STOP = BYTES.controls["<|im_end|>"]
HERMES = OutputSpec(BYTES, frozenset({STOP}), "hermes", "qwen3", "model-1")
SEALER = Sealer(Keyring([b"k" * 32]))
OWNER = TurnOwner("t", b"key", SEALER)
HEAD = HeadDigests(b"s", b"t", b"w", b"head")
TOOL = ToolSpec("run", "", {"type": "object", "properties": {"command": {"type": "string"}}})

FIRST = "<think>\nHm, é 🦜.\n</think>\n\n"
LOOK = "I look."
LS = '<tool_call>\n{"name": "run", "arguments": {"command": "ls 漢"}}\n</tool_call>'
SECOND = "\n<think>\nOh.\n</think>\n\n"
PWD = '<tool_call>\n{"name": "run", "arguments": {"command": "pwd"}}\n</tool_call>'
WHOLE = FIRST + LOOK + "\n" + LS + SECOND + PWD


def _prompt(history: RecognizedHistory | None = None, *, ids: Sequence[int] = (1, 2, 3)) -> Prompt:
    return Prompt(
        array("I", ids), "cold", False, HEAD, history or RecognizedHistory(chain=b"c" * 16)
    )


def _generation(
    spec: OutputSpec = HERMES,
    *,
    prompt: Prompt | None = None,
    owner: TurnOwner = OWNER,
    stop: tuple[str, ...] = (),
) -> Generation:
    numbers = count()
    request = Request("m", tools=(TOOL,), sampling=Sampling(stop=stop))
    return Generation(
        spec,
        prompt or _prompt(),
        owner,
        request,
        entry_id="entry-1",
        new_call_id=lambda: f"toolu_{next(numbers)}",
    )


def _feed(generation: Generation, ids: Sequence[int], step: int = 1) -> list[Event]:
    events: list[Event] = []
    for at in range(0, len(ids), step):
        events += generation.feed(ids[at : at + step])
    return events


def _entry(ids: Sequence[int], step: int = 1) -> LedgerEntry:
    generation = _generation()
    _feed(generation, ids, step)
    generation.finish("stop" if generation.stopped else "length")
    return generation.build_entry(5.0)


def test_the_entry_of_a_turn() -> None:
    ids = BYTES.encode(WHOLE)
    entry = _entry([*ids, STOP])
    assert list(unpack_ids(entry.generated)) == ids
    assert entry.stop == STOP
    assert (entry.id, entry.tenant, entry.model) == ("entry-1", "t", "model-1")
    assert (entry.created, entry.head, entry.chain_before) == (5.0, b"head", b"c" * 16)
    assert entry.finish == "tool_calls"
    assert [(s.kind, s.shown) for s in entry.spans] == [
        ("reasoning", "Hm, é 🦜."),
        ("text", "I look."),
        ("call", '{"command": "ls 漢"}'),
        ("reasoning", "Oh."),
        ("call", '{"command": "pwd"}'),
    ]
    assert "".join(span.raw for span in entry.spans) == WHOLE
    assert [(s.name, s.id) for s in entry.spans if s.kind == "call"] == [
        ("run", "toolu_0"),
        ("run", "toolu_1"),
    ]
    assert (entry.parent, entry.prefix_tokens, list(unpack_ids(entry.suffix))) == (
        None,
        0,
        [1, 2, 3],
    )


def test_the_chain_matches_the_copy_of_the_client() -> None:
    entry = _entry([*BYTES.encode(WHOLE), STOP])
    shown = Turn(
        "assistant",
        (
            TextBlock("I look."),
            ToolCallBlock("x", "run", '{"command":"ls 漢"}'),
            ToolCallBlock("y", "run", '{"command":"pwd"}'),
        ),
    )
    assert entry.chain == extend_chain(b"key", b"c" * 16, digest_turn(shown).digest)


def test_end_offsets_of_spans() -> None:
    text = ""
    for span in _entry([*BYTES.encode(WHOLE), STOP]).spans:
        text += span.raw
        assert span.tokens == len(BYTES.encode(text))


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_spans_do_not_depend_on_the_chunking(cuts: list[int]) -> None:
    """A character may be split over two feeds, but not a marker."""
    ids = [*BYTES.encode(WHOLE), STOP]
    generation = _generation()
    at = 0
    for size in [*cuts, len(ids)]:
        generation.feed(ids[at : at + size])
        at += size
    generation.finish("stop")
    assert generation.build_entry(5.0) == _entry(ids)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 500])
@pytest.mark.parametrize("pair", [p for p in PAIRS if p.name == "Qwen3"], ids=lambda p: p.name)
def test_end_offsets_of_unusual_tokens(pair: Pair, step: int) -> None:
    """Random real tokens that split characters."""
    require(pair)
    real = model(pair)
    tokenizer = real.tokenizer
    ids = OddSpelling(tokenizer, seed=3, share=0.6).split(tokenizer.encode(WHOLE))
    spec = OutputSpec(tokenizer, real.stop_ids, "hermes", "qwen3", "m")
    generation = _generation(spec)
    _feed(generation, ids, step)
    generation.finish("length")
    entry = generation.build_entry()
    assert list(unpack_ids(entry.generated)) == ids
    text = ""
    for span in entry.spans:
        text += span.raw
        spelled = tokenizer.decode(ids[: span.tokens])
        assert text.startswith(spelled)
        assert text.removeprefix(spelled).strip() == ""


def test_a_seal_covers_the_output_since_the_last_seal() -> None:
    generation = _generation()
    ids = [*BYTES.encode(WHOLE), STOP]
    ends = [e for e in _feed(generation, ids) if isinstance(e, SpanEnd) and e.kind == "reasoning"]
    assert len(ends) == 2
    for number, end in enumerate(ends):
        assert end.seal is not None
        assert read_entry_id(end.seal) == "entry-1"
        sealed = SEALER.open(end.seal, "t", "model-1")
        assert isinstance(sealed, SealPayload)
        assert sealed.reasoning_index == number
        assert (sealed.chain_before, sealed.head, sealed.parent) == (b"c" * 16, b"head", None)
        spelled = BYTES.decode(unpack_ids(sealed.generated))
        expected = FIRST if number == 0 else LOOK + "\n" + LS + SECOND
        assert sealed.start == (0 if number == 0 else len(BYTES.encode(FIRST.rstrip())))
        assert spelled.strip() == expected.strip()
        assert "".join(span.raw for span in sealed.spans).strip() == expected.strip()
    assert SEALER.open(ends[0].seal or "", "u", "model-1") != sealed


def test_a_seal_contains_the_tail_of_the_previous_turn() -> None:
    parent = _entry([*BYTES.encode(WHOLE), STOP])
    generation = _generation(prompt=_prompt(RecognizedHistory(parent=parent)))
    events = _feed(generation, BYTES.encode(FIRST + LOOK))
    seal = next(e.seal for e in events if isinstance(e, SpanEnd))
    sealed = SEALER.open(seal or "", "t", "model-1")
    assert isinstance(sealed, SealPayload)
    assert sealed.parent == "entry-1"
    tail = sealed.previous
    assert tail is not None
    assert (tail.entry, tail.stop) == ("entry-1", STOP)
    assert tail.start == parent.spans[3].tokens
    assert tail.spans == parent.spans[4:]
    assert unpack_ids(parent.generated)[tail.start :] == unpack_ids(tail.generated)


def test_without_a_sealer_there_are_no_seals() -> None:
    events = _feed(_generation(owner=TurnOwner("t", b"key")), BYTES.encode(FIRST + LOOK))
    assert [e.seal for e in events if isinstance(e, SpanEnd)] == [None]


def test_the_entry_extends_its_parent() -> None:
    parent = _entry([*BYTES.encode(FIRST), STOP])
    whole = array("I", [1, 2, 3, 4, 5])
    history = RecognizedHistory(parent=parent, parent_token_ids=SharedTokenIds(whole[:]))
    grown = Prompt(whole + array("I", [6, 7]), "grown", False, HEAD, history)
    generation = _generation(prompt=grown)
    generation.finish()
    entry = generation.build_entry()
    assert (entry.parent, entry.prefix_tokens, list(unpack_ids(entry.suffix))) == (
        "entry-1",
        5,
        [6, 7],
    )
    cold = Prompt(array("I", [1, 2, 9, 9]), "cold", False, HEAD, history)
    generation = _generation(prompt=cold)
    generation.finish()
    entry = generation.build_entry()
    assert (entry.parent, entry.prefix_tokens, list(unpack_ids(entry.suffix))) == (
        "entry-1",
        2,
        [9, 9],
    )


def test_interrupted_turn_has_no_finish() -> None:
    generation = _generation()
    generation.feed(BYTES.encode(LOOK))
    assert (generation.build_entry().stop, generation.build_entry().finish) == (
        None,
        FINISH_INTERRUPTED,
    )


def test_tokens_after_the_stop_token_are_ignored() -> None:
    generation = _generation()
    ids = BYTES.encode(LOOK)
    events = generation.feed([*ids, STOP, *BYTES.encode("and more")])
    assert generation.stopped
    assert generation.feed(BYTES.encode("and more")) == []
    events += generation.finish("stop")
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == LOOK
    assert list(generation.ids) == ids
    assert generation.build_entry().stop == STOP


def test_turn_truncated_by_length() -> None:
    generation = _generation()
    truncated = BYTES.encode(FIRST + LS)[:-10]
    events = [*_feed(generation, truncated), *generation.finish("length")]
    assert not generation.stopped
    assert isinstance(events[-1], Finish)
    assert not any(isinstance(event, CallClose) for event in events)
    entry = generation.build_entry()
    assert (entry.stop, entry.finish) == (None, "length")
    assert list(unpack_ids(entry.generated)) == truncated
    assert entry.spans[-1].complete is False
    assert entry.spans[-1].tokens == len(truncated)


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        (LOOK, "stop", "stop"),
        (LOOK, None, "stop"),
        (LOOK, "length", "length"),
        (LOOK, "cancelled", "cancelled"),
        (LS, "stop", "tool_calls"),
        (LS, None, "tool_calls"),
        (LS, "length", "length"),
        (LS[:-30], "stop", "length"),
        ("", "stop", "stop"),
    ],
)
def test_finish_reasons(text: str, given: object, expected: str) -> None:
    generation = _generation()
    _feed(generation, BYTES.encode(text))
    assert generation.finish(given)[-1] == Finish(expected)  # type: ignore[arg-type]
    assert generation.build_entry().finish == generation.message().finish == expected


def test_pending_bytes_are_emitted_at_the_end() -> None:
    generation = _generation()
    half = "🦜".encode()[:2]
    events = _feed(generation, [*BYTES.encode("Ah "), *half])
    events += generation.finish("length")
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Ah \ufffd"
    assert list(generation.ids)[-2:] == list(half)
    assert generation.build_entry().spans[-1].tokens == 5


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        (FIRST + LS + "\n<thi", FIRST + LS),
        (FIRST + LS + "\n<think>\nAnd…\n</think>\n\n<tool_ca", FIRST + LS),
        (FIRST + LOOK, FIRST + LOOK),
        ("<think>\nHm, and", "<think>\nHm, and"),
    ],
)
def test_interrupted_turn_records_emitted_output(text: str, recorded: str) -> None:
    generation = _generation()
    _feed(generation, BYTES.encode(text))
    assert BYTES.decode(unpack_ids(generation.build_entry().generated)).rstrip("\n") == recorded
    generation.finish("length")
    assert BYTES.decode(unpack_ids(generation.build_entry().generated)) == text


def test_a_stop_token_inside_a_character() -> None:
    generation = _generation()
    events = [*generation.feed([*BYTES.encode("Ah"), 0xF0, STOP]), *generation.finish("stop")]
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Ah\ufffd"


@pytest.mark.parametrize(
    ("body", "shown"), [('{"command": "ls"}', '{"command": "ls"}'), ("", "{}")]
)
def test_a_stop_token_that_is_a_marker_ends_the_call(body: str, shown: str) -> None:
    """gpt-oss ends a call with its stop token; without it an empty call is truncated."""
    controls = ("<|channel|>", "<|message|>", "<|call|>", "<|end|>", "<|start|>", "<|constrain|>")
    tokenizer = ByteTokenizer(controls)
    stop = tokenizer.controls["<|call|>"]
    spec = OutputSpec(tokenizer, frozenset({stop}), "harmony", "gpt_oss", "m")
    generation = _generation(spec)
    ids = tokenizer.encode(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        f"<|channel|>commentary to=functions.run <|constrain|>json<|message|>{body}"
    )
    events = _feed(generation, [*ids, stop])
    assert any(isinstance(event, CallClose) for event in events), "it may run at once"
    generation.finish("stop")
    entry = generation.build_entry()
    assert list(unpack_ids(entry.generated)) == ids
    assert (entry.stop, entry.finish) == (stop, "tool_calls")
    assert [(s.kind, s.shown, s.complete) for s in entry.spans] == [
        ("reasoning", "Hm.", True),
        ("call", shown, True),
    ]
    assert entry.spans[-1].tokens == len(ids)


KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.run:7<|tool_call_argument_begin|>"
    '{"command": "ls"}<|tool_call_end|><|tool_calls_section_end|>'
)


def test_model_ids_are_recorded_with_the_public_ids() -> None:
    tokenizer = _spelled(KIMI)
    generation = _generation(OutputSpec(tokenizer, frozenset(), "kimi_k2", None, "m"))
    events = [*_feed(generation, tokenizer.encode(KIMI)), *generation.finish("stop")]
    assert [e.id for e in events if e.type == "call_open"] == ["toolu_0"]
    (span,) = generation.build_entry().spans
    assert (span.id, span.own_id, span.name) == ("toolu_0", "functions.run:7", "run")


def _spelled(text: str) -> Tokenizer:
    return ByteTokenizer(re.findall(r"<\|[a-z_]+\|>", text))


def test_control_tokens_spelled_in_text_stay_text() -> None:
    tokenizer = _spelled(KIMI)
    generation = _generation(OutputSpec(tokenizer, frozenset(), "kimi_k2", None, "m"))
    generation.feed(tokenizer.encode_plain(KIMI))
    generation.finish("stop")
    (span,) = generation.build_entry().spans
    assert (span.kind, span.shown) == ("text", KIMI)


@pytest.mark.parametrize("step", [1, 2, 100])
def test_a_stop_sequence_of_the_client(step: int) -> None:
    generation = _generation(stop=("STOP", "\n\nHuman:"))
    ids = BYTES.encode("One\n\nTwo.\n\nHuman: more")
    events = [*_feed(generation, ids, step), *generation.finish("stop")]
    assert generation.stopped
    assert "".join(e.text for e in events if isinstance(e, TextDelta)).strip() == "One\n\nTwo."
    assert events[-1] == Finish("stop_sequence", "\n\nHuman:")
    assert BYTES.decode(generation.ids) == "One\n\nTwo."


def test_a_turn_that_ends_before_a_stop_sequence() -> None:
    generation = _generation(stop=("END",))
    generation.feed([*BYTES.encode("One EN"), STOP, *BYTES.encode("D")])
    assert generation.stopped
    assert generation.finish("stop")[-1] == Finish("stop")
    assert BYTES.decode(generation.ids) == "One EN"


def test_stop_sequences_are_not_found_inside_markers() -> None:
    generation = _generation(stop=("think", "\n<"))
    _feed(generation, BYTES.encode(FIRST + LOOK))
    generation.finish("stop")
    assert [(s.kind, s.shown) for s in generation.build_entry().spans] == [
        ("reasoning", "Hm, é 🦜."),
        ("text", LOOK),
    ]


def test_an_empty_message() -> None:
    generation = _generation()
    assert generation.finish("stop") == [Finish("stop")]
    entry = generation.build_entry()
    assert (entry.generated, entry.spans) == (b"", ())
    assert generation.message().blocks == ()


def test_message_blocks_have_public_ids() -> None:
    generation = _generation()
    _feed(generation, BYTES.encode(WHOLE))
    generation.finish("stop")
    blocks = generation.message().blocks
    assert [b.id for b in blocks if isinstance(b, ToolCallBlock)] == ["toolu_0", "toolu_1"]
    assert [b.text for b in blocks if isinstance(b, ReasoningBlock)] == ["Hm, é 🦜.", "Oh."]
