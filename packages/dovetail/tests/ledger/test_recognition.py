"""Recognition: which recorded turns a prompt may extend."""

import asyncio
from array import array
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from ledger_entries import turn as plain

from dovetail.ledger.entry import EntrySpan, LedgerEntry, pack_ids
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.recognition import ReplayPolicy, TurnRecognizer
from dovetail.ledger.recognized_history import RecognitionScope, RecognizedHistory
from dovetail.ledger.restoration import SealRestorer
from dovetail.ledger.seal import Sealer, SealPayload
from dovetail.ledger.store import MAX_LOOKUP_IDS
from dovetail.ledger.turn_digest import digest_turn, extend_chain
from dovetail_model import ReasoningBlock, TextBlock, ToolCallBlock, ToolResultBlock, Turn

SCOPE = RecognitionScope("t", b"key", "m", b"head")
GO = Turn("user", (TextBlock("Go."),))
ON = Turn("user", (TextBlock("On."),))


def _text_turn(text: str, *, reasoning: str = "", seal: str | None = None) -> Turn:
    blocks = (ReasoningBlock(reasoning, seal),) if reasoning or seal else ()
    return Turn("assistant", (*blocks, TextBlock(text)))


def _calls(id: str) -> Turn:
    return Turn("assistant", (ToolCallBlock(id, "read", "{}"),))


def _result(id: str, text: str = "R.") -> Turn:
    return Turn("tool", (ToolResultBlock(id, (TextBlock(text),)),))


def _seal(id: str) -> str:
    sealed = SealPayload(id, None, b"", (), b"", b"")
    return Sealer(Keyring([b"k" * 32])).seal(sealed, "t", "m")


class LedgerFixture:
    """A ledger with turns that are recorded as a generation records them."""

    def __init__(self, replay: ReplayPolicy = "auto") -> None:
        self.ledger = Ledger(MemoryLedgerStore())
        self.recognizer = TurnRecognizer(self.ledger, SealRestorer(), replay=replay)

    async def recognize(self, *turns: Turn, scope: RecognitionScope = SCOPE) -> RecognizedHistory:
        return await self.recognizer.resolve(await self.recognizer.match_turns(turns, scope), scope)

    async def record_turn(
        self, turns: Sequence[Turn], turn: Turn, id: str, *, ids: Sequence[int], **changes: Any
    ) -> LedgerEntry:
        """Record a turn that was generated after these turns, as recognized."""
        history = await self.recognize(*turns)
        spans = tuple(_span(block) for block in turn.blocks)
        prompt = array("I", [*(history.parent_token_ids or ()), 900 + len(turns)])
        entry = plain(
            id,
            parent=history.parent.id if history.parent else None,
            prefix_tokens=len(history.parent_token_ids or ()),
            suffix=pack_ids([900 + len(turns)]),
            generated=pack_ids(ids),
            spans=spans,
            chain_before=history.chain,
            chain=extend_chain(b"key", history.chain, digest_turn(turn).digest),
            lineage=history.lineage,
            head=b"head",
        )
        entry = msgspec.structs.replace(entry, **changes)
        await self.ledger.record(entry, prompt)
        return entry


def _span(block: Any) -> EntrySpan:
    match block:
        case TextBlock(text=text):
            return EntrySpan("text", text, text)
        case ReasoningBlock(text=text):
            return EntrySpan("reasoning", text, text)
        case call:
            return EntrySpan("call", "", call.arguments, name=call.name, id=call.id)


def _run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_an_empty_ledger_recognizes_no_turn() -> None:
    async def main() -> None:
        found = await LedgerFixture().recognize()
        assert (found.entries, found.anchor_index, found.parent) == ({}, None, None)
        found = await LedgerFixture().recognize(GO, _text_turn("Yes."), ON)
        assert (found.entries, found.anchor_index, found.parent) == ({}, None, None)
        assert len(found.digests) == 3

    _run(main())


@pytest.mark.parametrize("session", [None, "s"])
def test_a_prompt_extends_the_last_turn(session: str | None) -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        scope = replace(SCOPE, session=session)
        one = await fixture.record_turn([GO], _calls("c1"), "e1", ids=[1])
        turns = [GO, _calls("c1"), _result("c1")]
        two = await fixture.record_turn(turns, _text_turn("Yes."), "e2", ids=[2])
        found = await fixture.recognize(*turns, scope=scope)
        assert (found.anchor_index, found.parent, found.call_count) == (1, one, 0)
        assert list(found.parent_token_ids or ()) == [901, 1]
        found = await fixture.recognize(*turns, _text_turn("Yes."), ON, scope=scope)
        assert (found.anchor_index, found.parent, found.call_count) == (3, two, 1)
        assert list(found.parent_token_ids or ()) == [901, 1, 903, 2]
        assert found.entries == {3: two}

    _run(main())


TWO_CALLS = Turn("assistant", (*_calls("c1").blocks, *_calls("c2").blocks))
#: A tool loop, and another loop that a template shows differently.
OTHER_LOOPS: dict[str, tuple[Turn, Turn]] = {
    "white space before the user's text": (Turn("user", (TextBlock(" Go."),)), _result("c1")),
    "white space after the user's text": (Turn("user", (TextBlock("Go.\n"),)), _result("c1")),
    "an indented result": (GO, _result("c1", "  R.")),
    "a line break after the result": (GO, _result("c1", "R.\n")),
    "the result of another call": (GO, _result("c2")),
    "the result of no call": (GO, _result("c3")),
}


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize(("user", "result"), OTHER_LOOPS.values(), ids=list(OTHER_LOOPS))
def test_a_prompt_with_other_text_of_users_and_tools_is_not_reused(
    user: Turn, result: Turn, session: str | None
) -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        scope = replace(SCOPE, session=session)
        known = [GO, TWO_CALLS, _result("c1")]
        await fixture.record_turn([GO], TWO_CALLS, "e1", ids=[1])
        two = await fixture.record_turn(known, _text_turn("Yes."), "e2", ids=[2])
        found = await fixture.recognize(*known, _text_turn("Yes."), ON, scope=scope)
        assert (found.anchor_index, found.parent) == (3, two)
        found = await fixture.recognize(
            user, TWO_CALLS, result, _text_turn("Yes."), ON, scope=scope
        )
        assert found.anchor_index in (None, 1)
        assert 3 not in found.entries

    _run(main())


def test_a_prompt_is_reused_if_a_client_rewrites_all_ids() -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        await fixture.record_turn([GO], _calls("c1"), "e1", ids=[1])
        known = [GO, _calls("c1"), _result("c1")]
        two = await fixture.record_turn(known, _text_turn("Yes."), "e2", ids=[2])
        renamed = [GO, _calls("mine"), _result("mine")]
        found = await fixture.recognize(*renamed, _text_turn("Yes."), ON)
        assert (found.anchor_index, found.parent) == (3, two)

    _run(main())


OTHERS: dict[str, dict[str, Any]] = {
    "another tenant": {"tenant": "u"},
    "another model": {"model": "n"},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=list(OTHERS))
def test_turns_of_other_tenants_and_models_are_not_recognized(change: dict[str, Any]) -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        await fixture.record_turn([GO], _text_turn("Yes."), "e1", ids=[1])
        await fixture.record_turn([GO], _calls("c1"), "e2", ids=[2])
        scope = replace(SCOPE, **change)
        for last in (_text_turn("Yes."), _text_turn("Yes.", seal=_seal("e1")), _calls("c1")):
            found = await fixture.recognize(GO, last, ON, scope=scope)
            assert (found.entries, found.anchor_index, found.parent) == ({}, None, None)

    _run(main())


def test_chains_use_the_key_of_the_tenant() -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        await fixture.record_turn([GO], _text_turn("Yes."), "e1", ids=[1])
        found = await fixture.recognize(
            GO, _text_turn("Yes."), ON, scope=replace(SCOPE, chain_key=b"other")
        )
        assert (found.entries, found.anchor_index, found.parent) == ({}, None, None)

    _run(main())


def test_another_head_reuses_turns_but_not_the_prompt() -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        one = await fixture.record_turn([GO], _calls("c1"), "e1", ids=[1])
        turns = [GO, _calls("c1"), _result("c1")]
        two = await fixture.record_turn(turns, _text_turn("Yes."), "e2", ids=[2])
        other = replace(SCOPE, head=b"other")
        found = await fixture.recognize(*turns, _text_turn("Yes."), ON, scope=other)
        assert (found.anchor_index, found.entries) == (None, {1: one, 3: two})
        assert found.parent == two
        assert list(found.parent_token_ids or ()) == [901, 1, 903, 2]
        later = replace(other, start=2)
        assert (await fixture.recognize(*turns, _text_turn("Yes."), ON, scope=later)).entries == {
            3: two
        }

    _run(main())


def test_an_earlier_edit_invalidates_the_prompt_but_not_the_tokens() -> None:
    """A handle still identifies the turn, but the turns before it have changed."""

    async def main() -> None:
        fixture = LedgerFixture()
        one = await fixture.record_turn([GO], _calls("c1"), "e1", ids=[1])
        two = await fixture.record_turn(
            [GO, _calls("c1"), _result("c1")], _calls("c2"), "e2", ids=[2]
        )
        edited = [GO, _calls("c1"), _result("c1", "Edited."), _calls("c2"), _result("c2")]
        found = await fixture.recognize(*edited)
        assert (found.anchor_index, found.parent) == (1, one)
        assert found.entries == {1: one, 3: two}
        other = replace(SCOPE, head=b"other")
        assert (await fixture.recognize(*edited, scope=other)).entries == {1: one, 3: two}

    _run(main())


def test_a_similar_turn_of_another_branch_is_no_anchor() -> None:
    """The same text after other reasoning has a different prompt."""

    async def main() -> None:
        fixture = LedgerFixture()
        seals = [_seal("e1"), _seal("e2")]
        first = await fixture.record_turn([GO], _text_turn("A.", reasoning="X."), "e1", ids=[1])
        await fixture.record_turn([GO], _text_turn("A.", reasoning="Y."), "e2", ids=[2])
        mine = [GO, _text_turn("A.", seal=seals[0]), ON]
        third = await fixture.record_turn(mine, _text_turn("B.", reasoning="Z."), "e3", ids=[3])
        again = [*mine, _text_turn("B.", seal=_seal("e3")), GO]
        found = await fixture.recognize(*again)
        assert (found.anchor_index, found.parent) == (3, third)
        other = [GO, _text_turn("A.", seal=seals[1]), ON, _text_turn("B.", seal=_seal("e3")), GO]
        found = await fixture.recognize(*other)
        assert found.anchor_index != 3
        assert list(found.parent_token_ids or ())[:2] != [901, 1]
        assert (await fixture.recognize(*mine)).parent == first

    _run(main())


def test_two_entries_with_the_same_chain_are_ambiguous() -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        await fixture.record_turn([GO], _text_turn("A.", reasoning="X."), "e1", ids=[1])
        await fixture.record_turn([GO], _text_turn("A.", reasoning="Y."), "e2", ids=[2])
        found = await fixture.recognize(GO, _text_turn("A."), ON)
        assert (found.entries, found.notes) == ({}, ("ambiguous_turn",))
        found = await fixture.recognize(GO, _text_turn("A.", reasoning="Y."), ON)
        assert found.parent is not None
        assert found.parent.id == "e2"

    _run(main())


def test_too_many_candidates_are_ambiguous() -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        for number in range(MAX_LOOKUP_IDS):
            await fixture.record_turn([GO], _text_turn("A."), f"e{number}", ids=[1])
        found = await fixture.recognize(GO, _text_turn("A."), ON)
        assert (found.entries, found.notes) == ({}, ("ambiguous_turn",))

    _run(main())


def test_an_unknown_local_call_id_excludes_similar_turns() -> None:
    """The turn was evicted, a similar one was not. Ids made by clients are ignored."""

    async def main() -> None:
        fixture = LedgerFixture()
        await fixture.record_turn([GO], _calls("toolu_01"), "e1", ids=[1])
        assert (
            await fixture.recognize(GO, _calls("toolu_01"), _result("toolu_01"))
        ).anchor_index == 1
        assert (
            await fixture.recognize(GO, _calls("toolu_02"), _result("toolu_02"))
        ).anchor_index is None
        assert (await fixture.recognize(GO, _calls("own"), _result("own"))).anchor_index == 1

    _run(main())


def test_entries_with_the_same_tokens_are_not_ambiguous() -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        await fixture.record_turn([GO], _text_turn("A."), "e1", ids=[1])
        await fixture.record_turn([GO], _text_turn("A."), "e2", ids=[1])
        found = await fixture.recognize(GO, _text_turn("A."), ON)
        assert found.anchor_index == 1

    _run(main())


def test_a_later_duplicate_invalidates_a_chain_match() -> None:
    """A turn that was matched by chain, in a session that continues."""

    async def main() -> None:
        fixture = LedgerFixture()
        scope = replace(SCOPE, session="s")
        turns = [GO, _text_turn("A."), ON, _text_turn("B."), GO, _text_turn("C."), ON]
        first, second = (_text_turn("A.", reasoning=text) for text in ("X.", "Y."))
        await fixture.record_turn(turns[:1], first, "e1", ids=[1], session="s")
        assert (await fixture.recognize(*turns[:3], scope=scope)).anchor_index == 1
        await fixture.recognize(*turns, scope=scope)
        await fixture.record_turn(turns[:1], second, "e2", ids=[2], session="s")
        found = await fixture.recognize(*turns, scope=scope)
        assert (found.anchor_index, found.entries) == (None, {})

    _run(main())


def test_an_edited_copy_is_used() -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        await fixture.record_turn([GO], _calls("c1"), "e1", ids=[1])
        edited = Turn("assistant", (ToolCallBlock("c1", "read", '{"path": "other"}'),))
        found = await fixture.recognize(GO, edited, _result("c1"))
        assert (found.entries, found.notes) == ({}, ("edited_turn",))

    _run(main())


def test_replay_exact_ignores_edits() -> None:
    async def main() -> None:
        fixture = LedgerFixture("exact")
        one = await fixture.record_turn([GO], _calls("c1"), "e1", ids=[1])
        edited = Turn("assistant", (ToolCallBlock("c1", "read", '{"path": "other"}'),))
        found = await fixture.recognize(GO, edited, _result("c1"))
        assert (found.anchor_index, found.entries, found.notes) == (1, {1: one}, ())

    _run(main())


def test_replay_client_reuses_no_turn() -> None:
    async def main() -> None:
        fixture = LedgerFixture("client")
        await fixture.record_turn([GO], _calls("c1"), "e1", ids=[1])
        found = await fixture.recognize(GO, _calls("c1"), _result("c1"))
        assert (found.entries, found.anchor_index, found.base_prompt) == ({}, None, None)
        known = await LedgerFixture().recognize(GO, _calls("c1"), _result("c1"))
        assert found.chain == known.chain

    _run(main())


def test_base_prompt_follows_the_previous_user_turn() -> None:
    """If a template drops reasoning at a user turn, the prompt before the last loop is known."""

    async def main() -> None:
        fixture = LedgerFixture()
        loop = [GO, _calls("c1"), _result("c1"), _text_turn("A."), ON]
        await fixture.record_turn(loop[:1], _calls("c1"), "e1", ids=[1])
        await fixture.record_turn(loop[:3], _text_turn("A."), "e2", ids=[2])
        two = [*loop, _calls("c2"), _result("c2"), _text_turn("B."), GO]
        await fixture.record_turn(two[:5], _calls("c2"), "e3", ids=[3])
        await fixture.record_turn(two[:7], _text_turn("B."), "e4", ids=[4])
        found = await fixture.recognize(*two, scope=replace(SCOPE, start=8))
        assert (found.anchor_index, found.entries) == (None, {})
        assert found.base_prompt is not None
        at, prompt = found.base_prompt
        assert (at, list(prompt)) == (5, [901, 1, 903, 2, 905])
        assert found.call_count == 1
        assert found.parent is not None
        assert found.parent.id == "e4"

    _run(main())


def test_without_entries_preserves_the_parent() -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        one = await fixture.record_turn([GO], _text_turn("A."), "e1", ids=[1])
        found = (await fixture.recognize(GO, _text_turn("A."), ON)).without_entries()
        assert (found.entries, found.anchor_index, found.base_prompt) == ({}, None, None)
        assert (found.parent, list(found.parent_token_ids or ())) == (one, [901, 1])

    _run(main())


def test_a_last_turn_to_continue_is_reported_separately() -> None:
    async def main() -> None:
        fixture = LedgerFixture()
        one = await fixture.record_turn([GO], _calls("c1"), "e1", ids=[1])
        turns = [GO, _calls("c1"), _result("c1")]
        two = await fixture.record_turn(turns, _text_turn("So far."), "e2", ids=[2])
        found = await fixture.recognize(*turns, _text_turn("So far."))
        assert (found.anchor_index, found.parent, found.partial_entry) == (1, one, two)
        assert (await fixture.recognize(*turns, _text_turn("Other."))).partial_entry is None
        client = LedgerFixture("client")
        client.ledger = fixture.ledger
        assert (await client.recognize(*turns, _text_turn("So far."))).partial_entry is None

    _run(main())


def test_interrupted_turn_is_continued_from_the_clients_copy() -> None:
    """Codex does this after a failed stream: the reasoning was complete, the call was not."""
    reasoning, seal = ReasoningBlock("Hm.", _seal("e1")), _seal("e1")
    call = ToolCallBlock("c1", "read", '{"pa')
    spans = (
        EntrySpan("reasoning", "<t>Hm.</t>", "Hm.", 3),
        EntrySpan("call", "<c>", call.arguments, 5, name="read", id="c1", complete=False),
    )

    async def main() -> None:
        fixture = LedgerFixture()
        turn = Turn("assistant", (reasoning, call))
        broken = {"spans": spans, "finish": "error"}
        one = await fixture.record_turn([GO], turn, "e1", ids=[1, 2, 3, 4, 5], **broken)
        partial = (await fixture.recognize(GO, Turn("assistant", (reasoning,)))).partial_entry
        assert partial == msgspec.structs.replace(
            one, spans=spans[:1], generated=pack_ids([1, 2, 3]), stop=None
        )
        for blocks in (
            (ReasoningBlock("Ah.", seal),),  # other reasoning
            (reasoning, TextBlock("So.")),  # text that was not generated
            (TextBlock("Hm."),),
        ):
            assert (await fixture.recognize(GO, Turn("assistant", blocks))).partial_entry is None

    _run(main())


def test_undelivered_tokens_of_an_interrupted_turn_are_not_continued() -> None:
    reasoning = ReasoningBlock("Hm.", _seal("e1"))

    async def main() -> None:
        fixture = LedgerFixture()
        turn = Turn("assistant", (reasoning,))
        spans = (EntrySpan("reasoning", "<t>Hm.</t>", "Hm.", 3),)
        half_a_marker = [4, 5]
        await fixture.record_turn([GO], turn, "e1", ids=[1, 2, 3, *half_a_marker], spans=spans)
        partial = (await fixture.recognize(GO, turn)).partial_entry
        assert partial is not None
        assert partial.generated == pack_ids([1, 2, 3])

    _run(main())
