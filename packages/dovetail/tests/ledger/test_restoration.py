"""Turns that are missing in the store are restored from seals."""

import os
from collections.abc import Sequence
from typing import Any

import pytest

from dovetail.ledger.entry import EntrySpan, pack_ids, unpack_ids
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.restoration import FINISH_REBUILT, SealRestorer
from dovetail.ledger.seal import MAX_SEAL_CHARS, PreviousTurnTail, Sealer, SealPayload
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock, ToolSpec, Turn

SEALER = Sealer(Keyring([b"k" * 32]))
REASONING = EntrySpan("reasoning", "<t>Hm.</t>", "Hm.", 3)
TEXT = EntrySpan("text", "Look.", "Look.", 4)
CALL = EntrySpan("call", "<c>", '{"a": 1.0}', 6, "read", "c1")
GENERATED = [1, 2, 3, 4, 5, 6]


def _seal(number: int = 0, *, sealer: Sealer = SEALER, **changes: Any) -> str:
    """Create a seal. The first of a turn holds its reasoning, the second the output since then."""
    start, end = ((0, 3), (3, 6))[number]
    given: dict[str, Any] = {
        "entry": "e1",
        "parent": None,
        "generated": pack_ids(GENERATED[start:end]),
        "spans": ((REASONING,), (TEXT, CALL))[number],
        "start": start,
        "chain_before": b"before",
        "head": b"head",
        "reasoning_index": number,
    }
    return sealer.seal(SealPayload(**{**given, **changes}), "t", "m")


def _turn(seal: str | None, *, arguments: str = '{"a": 1}', text: str = "Look.") -> Turn:
    return Turn(
        "assistant",
        (ReasoningBlock("Hm.", seal), TextBlock(text), ToolCallBlock("c1", "read", arguments)),
    )


def _following(**changes: Any) -> Turn:
    tail = {"entry": "e1", "start": 3, "generated": pack_ids([4, 5, 6]), "spans": (TEXT, CALL)}
    seal = _seal(entry="e2", previous=PreviousTurnTail(**{**tail, **changes}), spans=(REASONING,))
    return Turn("assistant", (ReasoningBlock("Hm.", seal), TextBlock("Done.")))


def _rebuild(
    blocks: Sequence[OutputBlock], tools: Sequence[ToolSpec], ids: Sequence[int], raw: str
) -> Sequence[int]:
    return [70 + len(blocks)]


def _restore(
    turn: Turn,
    following: Turn | None = None,
    *,
    rebuild: Any = _rebuild,
    sealer: Sealer | None = SEALER,
    owner: tuple[str, str] = ("t", "m"),
) -> tuple[Any, list[str]]:
    notes: list[str] = []
    entry = SealRestorer(sealer, rebuild).restore(turn, following, *owner, (), notes)
    return entry, notes


def test_two_seals_restore_the_complete_turn() -> None:
    entry, notes = _restore(_turn(_seal()), _following())
    assert notes == []
    assert list(unpack_ids(entry.generated)) == GENERATED
    assert entry.spans == (REASONING, TEXT, CALL)
    assert (entry.id, entry.tenant, entry.model) == ("e1", "t", "m")
    assert (entry.finish, entry.chain_before) == ("stop", b"before")
    assert (entry.parent, entry.suffix, entry.head) == (None, b"", b"")


def test_unsealed_blocks_are_rebuilt_and_marked() -> None:
    entry, notes = _restore(_turn(_seal()))
    assert notes == []
    assert list(unpack_ids(entry.generated)) == [1, 2, 3, 72]
    assert entry.finish == FINISH_REBUILT
    assert [(s.kind, s.shown) for s in entry.spans[1:]] == [("text", "Look."), ("call", '{"a": 1}')]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "moved"])
def test_the_seals_of_a_turn_are_joined(order: tuple[int, int]) -> None:
    first, second = (_seal(number) for number in order)
    turn = Turn("assistant", (*_turn(first).blocks, ReasoningBlock("", second)))
    entry, notes = _restore(turn, rebuild=None)
    assert notes == []
    assert list(unpack_ids(entry.generated)) == GENERATED
    assert entry.spans == (REASONING, TEXT, CALL)


def test_a_turn_without_its_first_seal_is_not_restored() -> None:
    turn = Turn("assistant", (*_turn(None).blocks, ReasoningBlock("", _seal(1))))
    assert _restore(turn) == (None, ["seal_incomplete"])


def test_seals_of_two_turns_are_not_joined() -> None:
    turn = Turn("assistant", (*_turn(_seal()).blocks, ReasoningBlock("", _seal(1, entry="e2"))))
    assert _restore(turn) == (None, ["seal_incomplete"])


@pytest.mark.parametrize(
    "wrong",
    [{"entry": "e9"}, {"start": 2}, {"start": 4}],
    ids=["another turn's", "too early", "too late"],
)
def test_a_tail_that_does_not_match_is_ignored(wrong: dict[str, Any]) -> None:
    entry, _ = _restore(_turn(_seal()), _following(**wrong))
    assert list(unpack_ids(entry.generated)) == [1, 2, 3, 72]


@pytest.mark.parametrize(
    "turn",
    [
        _turn(_seal(), arguments='{"a": 2}'),
        _turn(_seal(), text="Other."),
        Turn("assistant", (ReasoningBlock("Other.", _seal()), *_turn(None).blocks[1:])),
    ],
    ids=["arguments", "text", "thought"],
)
def test_an_edited_turn_is_not_restored(turn: Turn) -> None:
    entry, notes = _restore(turn, _following())
    assert entry is None
    assert notes == ["edited_turn"]


OTHER = Sealer(Keyring([b"o" * 32]))


@pytest.mark.parametrize(
    ("seal", "owner", "note"),
    [
        (_seal(), ("u", "m"), "seal_foreign"),
        (_seal(), ("t", "n"), "seal_foreign"),
        (_seal(sealer=OTHER), ("t", "m"), "seal_unknown_key"),
        (_seal()[:-1] + ("A" if _seal()[-1] != "A" else "B"), ("t", "m"), "seal_forged"),
    ],
    ids=["tenant", "model", "key", "forged"],
)
def test_a_refused_seal_adds_a_note(seal: str, owner: tuple[str, str], note: str) -> None:
    entry, notes = _restore(_turn(seal), owner=owner)
    assert entry is None
    assert notes == [note]


@pytest.mark.parametrize("seal", [None, "ErUBCkYIBRgCIkD", ""])
def test_seals_of_other_vendors_are_ignored(seal: str | None) -> None:
    assert _restore(_turn(seal)) == (None, [])


def test_a_seal_without_tokens_restores_no_turn() -> None:
    noise = pack_ids(int.from_bytes(os.urandom(3), "big") for _ in range(MAX_SEAL_CHARS))
    entry, notes = _restore(_turn(_seal(generated=noise)))
    assert entry is None
    assert notes == ["seal_incomplete"]


def test_without_an_encoder_the_turn_is_incomplete() -> None:
    assert _restore(_turn(_seal()), rebuild=None) == (None, ["seal_incomplete"])
    assert _restore(_turn(_seal()), rebuild=lambda *_: None) == (None, ["seal_incomplete"])


def test_without_a_sealer_no_seal_is_opened() -> None:
    assert _restore(_turn(_seal()), sealer=None) == (None, [])


def test_only_output_after_the_seal_is_rebuilt() -> None:
    rebuilt: list[OutputBlock] = []

    def rebuild(
        blocks: Sequence[OutputBlock], tools: Sequence[ToolSpec], ids: Sequence[int], raw: str
    ) -> Sequence[int]:
        assert (list(ids), raw) == (GENERATED, "<t>Hm.</t>Look.<c>")
        rebuilt.extend(blocks)
        return [99]

    later = ToolCallBlock("c2", "list", "{}")
    blocks = (*_turn(_seal()).blocks, ReasoningBlock("", _seal(1)))
    turn = Turn("assistant", (*blocks, TextBlock("More."), later))
    entry, _ = _restore(turn, rebuild=rebuild)
    assert rebuilt == [TextBlock("More."), later]
    assert list(unpack_ids(entry.generated)) == [*GENERATED, 99]
    assert entry.call_ids == ("c1", "c2")
