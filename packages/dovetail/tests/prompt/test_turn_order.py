"""The canonical order of turns: tables, then properties on random histories."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dovetail.prompt.normalization import PromptNormalizer, normalize_prompt
from dovetail.prompt.turn_order import normalize_call_id, order_turns
from dovetail.prompt.volatile_text import NormalizationOptions, TextCleaner
from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    Request,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    Turn,
)

IMAGE = ImageBlock("image/png", "AAAA")
PAPER = DocumentBlock("application/pdf", "t", text="paper")


def assistant(*what: str | Block) -> Turn:
    return Turn("assistant", _blocks(what))


def user(*what: str | Block) -> Turn:
    return Turn("user", _blocks(what))


def tool(*results: ToolResultBlock) -> Turn:
    return Turn("tool", results)


def call(id: str) -> ToolCallBlock:
    return ToolCallBlock(id, "run", "{}")


def gave(id: str, *what: str | Block, failed: bool = False) -> ToolResultBlock:
    inside: Any = _blocks(what)
    return ToolResultBlock(id, inside, failed)


def _blocks(what: tuple[str | Block, ...]) -> tuple[Block, ...]:
    return tuple(TextBlock(part) if isinstance(part, str) else part for part in what)


def as_read(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """The turns without the information who wrote the text of a result."""
    return tuple(
        Turn(
            turn.role,
            tuple(
                msgspec.structs.replace(block, appended="")
                if isinstance(block, ToolResultBlock)
                else block
                for block in turn.blocks
            ),
        )
        for turn in turns
    )


GO = user("go")
CALL_A, CALL_AB = assistant(call("a")), assistant(call("a"), call("b"))

CASES: dict[str, tuple[tuple[Turn, ...], tuple[Turn, ...]]] = {
    "messages: results become a tool turn": (
        (GO, CALL_A, user(gave("a", "1"))),
        (GO, CALL_A, tool(gave("a", "1"))),
    ),
    "claude-code: completion order becomes call order": (
        (GO, CALL_AB, user(gave("b", "2"), gave("a", "1"))),
        (GO, CALL_AB, tool(gave("a", "1"), gave("b", "2"))),
    ),
    "claude-code: results in two user turns": (
        (GO, CALL_AB, user(gave("b", "2")), user(gave("a", "1"))),
        (GO, CALL_AB, tool(gave("a", "1"), gave("b", "2"))),
    ),
    "openclaw: rewritten ids": (
        (
            GO,
            assistant(call("call_1"), call("call_2")),
            tool(gave("call2", "2"), gave("call1", "1")),
        ),
        (
            GO,
            assistant(call("call_1"), call("call_2")),
            tool(gave("call1", "1"), gave("call2", "2")),
        ),
    ),
    "ids that differ in punctuation only are told apart": (
        (GO, assistant(call("c_11"), call("c_1_1")), tool(gave("c_1_1", "2"), gave("c_11", "1"))),
        (GO, assistant(call("c_11"), call("c_1_1")), tool(gave("c_11", "1"), gave("c_1_1", "2"))),
    ),
    "text beside results joins the last one": (
        (GO, CALL_AB, user(gave("b", "2"), "note", gave("a", "1"))),
        (GO, CALL_AB, tool(gave("a", "1"), gave("b", "2\n\nnote"))),
    ),
    "claude-code: an inline system turn behind results is a reminder": (
        (GO, CALL_A, user(gave("a", "1")), Turn("system", (TextBlock("mind"),)), user("also")),
        (GO, CALL_A, tool(gave("a", "1\n\nmind\n\nalso"))),
    ),
    "claude-code: a document beside a result": (
        (GO, CALL_A, user(gave("a", "1"), PAPER, IMAGE, "see")),
        (GO, CALL_A, tool(gave("a", "1", PAPER, IMAGE, "see"))),
    ),
    "a reminder behind a result without text": (
        (GO, CALL_A, user(gave("a", IMAGE), "x", "y"), CALL_A, user(gave("a"), "z")),
        (GO, CALL_A, tool(gave("a", IMAGE, "x\n\ny")), CALL_A, tool(gave("a", "z"))),
    ),
    "results of no call stay behind the others": (
        (GO, CALL_A, tool(gave("z", "9"), gave("a", "1"), gave("y", "8"))),
        (GO, CALL_A, tool(gave("a", "1"), gave("z", "9"), gave("y", "8"))),
    ),
    "results of no call after text stay where they are": (
        (GO, assistant("hm"), user("so"), tool(gave("z", "9")), user("on")),
        (GO, assistant("hm"), user("so"), tool(gave("z", "9\n\non"))),
    ),
    "a history cut before its calls": (
        (GO, user(gave("z", "9"), "note"), assistant("ok"), GO),
        (GO, tool(gave("z", "9\n\nnote")), assistant("ok"), GO),
    ),
    "codex: steering between a call and its result": (
        (GO, CALL_A, user("wait"), tool(gave("a", "1"))),
        (GO, CALL_A, tool(gave("a", "1\n\nwait"))),
    ),
    "a result that comes an exchange late": (
        (GO, CALL_A, GO, assistant("hm"), tool(gave("a", "1")), assistant("ah")),
        (GO, CALL_A, tool(gave("a", "1\n\ngo")), assistant("hm", "ah")),
    ),
    "an id used twice belongs to the nearest call": (
        (GO, CALL_A, tool(gave("a", "1")), CALL_A, tool(gave("a", "2"))),
        (GO, CALL_A, tool(gave("a", "1")), CALL_A, tool(gave("a", "2"))),
    ),
    "two calls of one id take a result each": (
        (GO, assistant(call("a"), call("b"), call("a")), tool(*(gave(i, "1") for i in "aab"))),
        (GO, assistant(call("a"), call("b"), call("a")), tool(*(gave(i, "1") for i in "aba"))),
    ),
    "a result sent twice": (
        (GO, CALL_AB, tool(gave("a", "1"), gave("b", "2")), user(gave("a", "1"), "x")),
        (GO, CALL_AB, tool(gave("a", "1"), gave("b", "2\n\nx"))),
    ),
    "two results that differ are both kept": (
        (GO, CALL_AB, tool(gave("a", "1"), gave("b", "2"), gave("a", "1", failed=True))),
        (GO, CALL_AB, tool(gave("a", "1"), gave("a", "1", failed=True), gave("b", "2"))),
    ),
    "a call without a result, then a user": (
        (GO, CALL_A, user("never mind")),
        (GO, CALL_A, user("never mind")),
    ),
    "of two calls one has a result": (
        (GO, CALL_AB, user(gave("a", "1"), "stop")),
        (GO, CALL_AB, tool(gave("a", "1\n\nstop"))),
    ),
    "assistant turns in a row are one": (
        (
            GO,
            assistant(ReasoningBlock("t"), call("a")),
            assistant("x", call("b")),
            user(gave("a", "1")),
        ),
        (GO, assistant(ReasoningBlock("t"), call("a"), "x", call("b")), tool(gave("a", "1"))),
    ),
    "assistant turns with results between are two": (
        (GO, CALL_A, tool(gave("a", "1")), assistant("x")),
        (GO, CALL_A, tool(gave("a", "1")), assistant("x")),
    ),
    "users in a row stay apart, their texts too": (
        (user("a", "b"), user("c"), assistant("x"), user("d"), user("e")),
        (user("a", "b"), user("c"), assistant("x"), user("d"), user("e")),
    ),
    "inline system and developer turns stay in place as system": (
        (
            GO,
            Turn("developer", (TextBlock("be"),)),
            assistant("x"),
            Turn("system", (TextBlock("b"),)),
        ),
        (GO, Turn("system", (TextBlock("be"),)), assistant("x"), Turn("system", (TextBlock("b"),))),
    ),
    "nothing is no turn": (
        (
            GO,
            user(),
            user("", " \n"),
            assistant(""),
            assistant("x"),
            user(" "),
            assistant("", "y", "\t"),
            GO,
        ),
        (GO, assistant("x", "y"), GO),
    ),
    "white space of a tool is data, empty text is none": (
        (GO, CALL_A, tool(gave("a", "", " \n"))),
        (GO, CALL_A, tool(gave("a", " \n"))),
    ),
    "what no result can hold stays behind it": (
        (GO, CALL_A, tool(gave("a", "1")), user("x", call("q"))),
        (GO, CALL_A, tool(gave("a", "1\n\nx")), user(call("q"))),
    ),
    "results inside an assistant turn": (
        (GO, assistant(call("a"), gave("a", "1"), "x"), GO),
        (GO, assistant(call("a"), "x"), tool(gave("a", "1\n\ngo"))),
    ),
}


@pytest.mark.parametrize(("given_turns", "arranged"), CASES.values(), ids=CASES.keys())
def test_a_history_is_ordered(given_turns: tuple[Turn, ...], arranged: tuple[Turn, ...]) -> None:
    assert as_read(order_turns(Request("m", turns=given_turns)).turns) == arranged
    assert as_read(normalize_prompt(Request("m", turns=given_turns)).turns) == arranged


def test_codex_begins_with_developer_turns() -> None:
    turns = (
        Turn("developer", (TextBlock("base"),)),
        user(" "),
        Turn("system", (TextBlock("more"), TextBlock(""))),
        GO,
        Turn("developer", (TextBlock("later"),)),
    )
    made = order_turns(Request("m", turns=turns, system=(TextBlock("first"), TextBlock(" "))))
    assert made.system == (TextBlock("first"), TextBlock("base"), TextBlock("more"))
    assert made.turns == (GO, Turn("system", (TextBlock("later"),)))


def test_turns_in_order_are_the_same_objects() -> None:
    turns = (
        GO,
        CALL_AB,
        tool(gave("a", "1"), gave("b", "2")),
        assistant("x"),
        user("y"),
        user("z"),
    )
    request = Request("m", turns=turns, system=(TextBlock("s"),))
    assert order_turns(request) is request
    assert normalize_prompt(request) is request
    grown = normalize_prompt(
        msgspec.structs.replace(request, turns=(*turns, CALL_A, user(gave("a", "1"))))
    )
    assert all(made is old for made, old in zip(grown.turns, turns, strict=False))


# --- properties ---------------------------------------------------------------------------------

IDS = st.sampled_from(["a", "b", "c_1", "c1", "c_11", "_", ""])
TEXTS = st.sampled_from(["x", "y", "x\n\ny", "", " ", "long text"])
Plain = TextBlock | ImageBlock | DocumentBlock
PLAIN: st.SearchStrategy[Plain] = TEXTS.map(TextBlock) | st.just(IMAGE) | st.just(PAPER)
RESULTS = st.builds(
    ToolResultBlock, IDS, st.lists(PLAIN, max_size=2).map(tuple), st.sampled_from([False, True])
)
SAYINGS = st.builds(call, IDS) | TEXTS.map(TextBlock) | TEXTS.map(ReasoningBlock)
ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")


def turns_of(role: Role, blocks: st.SearchStrategy[Block]) -> st.SearchStrategy[Turn]:
    return st.lists(blocks, max_size=4).map(lambda found: Turn(role, tuple(found)))


TURN = st.one_of(
    turns_of("assistant", SAYINGS),
    turns_of("user", st.one_of(RESULTS, PLAIN)),
    turns_of("tool", RESULTS),
    turns_of("user", PLAIN),
    turns_of("system", PLAIN),
    *(turns_of(role, st.one_of(SAYINGS, RESULTS, PLAIN)) for role in ROLES),
)
HISTORY = st.lists(TURN, max_size=10).map(tuple)


def texts(request: Request) -> list[str]:
    return [
        text
        for blocks in (request.system, *(turn.blocks for turn in request.turns))
        for block in blocks
        for text in _texts(block)
        if text.strip()
    ]


def _texts(block: Block) -> list[str]:
    match block:
        case ToolResultBlock(blocks=inner):
            return [text for part in inner for text in _texts(part)]
        case ToolReferenceBlock(name=name) | ToolRemovalBlock(name=name):
            return [name]
        case ToolCallBlock(id=id):
            return [f"call {id}"]
        case TextBlock(text=text) | ReasoningBlock(text=text) | DocumentBlock(text=text):
            return [text or ""]
        case ImageBlock(data=data):
            return [data or ""]


def later(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Return the same turns with ids that no other history has."""
    return tuple(Turn(turn.role, tuple(map(_later, turn.blocks))) for turn in turns)


def _later(block: Block) -> Block:
    match block:
        case ToolCallBlock(id=id):
            return call("later" + id)
        case ToolResultBlock(call_id=id):
            return msgspec.structs.replace(block, call_id="later" + id)
    return block


@given(HISTORY)
def test_ordering_is_idempotent(turns: tuple[Turn, ...]) -> None:
    once = order_turns(Request("m", turns=turns))
    assert order_turns(once) is once


@given(HISTORY)
def test_all_text_is_preserved(turns: tuple[Turn, ...]) -> None:
    request = Request("m", turns=turns)
    ordered = texts(order_turns(request))
    assert all(any(text in other for other in ordered) for text in texts(request))


@given(HISTORY)
def test_the_result_is_canonical(turns: tuple[Turn, ...]) -> None:
    made = order_turns(Request("m", turns=turns)).turns
    assert not made or made[0].role != "system"
    for before, turn in pairwise(made):
        assert turn.blocks
        assert turn.role != before.role or turn.role in ("user", "system")
        results = [block for block in turn.blocks if isinstance(block, ToolResultBlock)]
        assert len(results) == (len(turn.blocks) if turn.role == "tool" else 0)
        calls = [block.id for block in before.blocks if isinstance(block, ToolCallBlock)]
        if len(set(map(normalize_call_id, calls))) == len(calls):
            order = [calls.index(r.call_id) for r in results if r.call_id in calls]
            assert order == sorted(order)


ENDS = st.sampled_from([GO, user(gave("a", "1")), tool(gave("c1", "x"), gave("b"))])
BEGINS = st.sampled_from([assistant("so"), assistant(ReasoningBlock("t"), call("new"))])


@given(HISTORY, ENDS, BEGINS, HISTORY)
def test_assistant_turns_only_extend_the_history(
    turns: tuple[Turn, ...], end: Turn, begin: Turn, more: tuple[Turn, ...]
) -> None:
    before = order_turns(Request("m", turns=(*turns, end)))
    assume(before.turns[-1].role != "assistant")  # `end` may have been a late result
    after = order_turns(Request("m", turns=(*turns, end, begin, *later(more))))
    assert after.turns[: len(before.turns)] == before.turns
    assert after.system == before.system


@given(HISTORY, ENDS, HISTORY)
def test_other_turns_change_only_the_last_exchange(
    turns: tuple[Turn, ...], end: Turn, more: tuple[Turn, ...]
) -> None:
    before = order_turns(Request("m", turns=(*turns, end))).turns
    after = order_turns(Request("m", turns=(*turns, end, GO, *later(more)))).turns
    last = max((at for at, turn in enumerate(before) if turn.role == "assistant"), default=-1)
    assert after[: last + 1] == before[: last + 1]


@given(HISTORY, BEGINS, HISTORY)
def test_a_reminder_only_extends_the_last_result(
    turns: tuple[Turn, ...], begin: Turn, more: tuple[Turn, ...]
) -> None:
    calls = (assistant(call("n1"), call("n2")), tool(gave("n2", "y"), gave("n1", "x")))
    before = order_turns(Request("m", turns=(*turns, GO, *calls))).turns
    more = (user("mind"), begin, *later(more))
    after = order_turns(Request("m", turns=(*turns, GO, *calls, *more))).turns
    assert before[-1] == tool(gave("n1", "x"), gave("n2", "y"))
    assert after[: len(before) - 1] == before[:-1]
    extended = after[len(before) - 1]
    assert as_read((extended,)) == (tool(gave("n1", "x"), gave("n2", "y\n\nmind")),)
    assert extended.blocks[-1].appended == "mind"  # type: ignore[union-attr]


EXCHANGE = st.tuples(
    st.lists(SAYINGS, min_size=1, max_size=2).map(lambda found: assistant(*found)),
    st.lists(st.one_of(RESULTS, PLAIN), min_size=1, max_size=2).map(lambda found: user(*found)),
)
SESSION = st.lists(EXCHANGE, max_size=6).map(
    lambda found: (GO, *(t for pair in found for t in pair))
)


@given(st.lists(st.one_of(SESSION, HISTORY), min_size=1, max_size=3), st.booleans())
def test_the_cache_does_not_change_results(histories: list[tuple[Turn, ...]], copied: bool) -> None:
    """Sessions that grow in parallel and then shrink, with one normalizer and with new ones."""
    warm = PromptNormalizer(NormalizationOptions())
    longest = max(map(len, histories))
    for count in (*range(1, longest + 1), *range(longest, 0, -3)):
        for turns in histories:
            part = turns[:count]
            if copied:
                part = tuple(Turn(turn.role, tuple(turn.blocks)) for turn in part)
            request = Request("m", turns=part)
            assert warm.normalize(request) == normalize_prompt(request) == order_turns(request)


LATE = (
    GO,
    CALL_A,
    GO,
    assistant("hm"),
    GO,
    assistant("so"),
    user(gave("a", "1")),
    assistant("ah"),
    GO,
)


@pytest.mark.parametrize("other", [user(gave("a", "2")), user("no")])
def test_a_late_result_reopens_a_closed_exchange(other: Turn) -> None:
    """A history without that result, or with another one, is not taken from the cache."""
    warm = PromptNormalizer()
    edited = (*LATE[:6], other, *LATE[7:])
    for turns in (LATE, edited, LATE):
        for count in range(1, len(turns) + 1):
            request = Request("m", turns=turns[:count])
            assert warm.normalize(request) == order_turns(request)


def test_similar_sessions_are_distinguished() -> None:
    warm = PromptNormalizer()
    for end in range(1, 8, 2):
        for name in ("one", "two"):
            request = Request("m", turns=(user(name), *long_history(4)[1:])[:end])
            assert warm.normalize(request) == order_turns(request)


def test_a_reminder_can_make_a_result_equal_another() -> None:
    turns = (GO, CALL_A, tool(gave("a", "x\n\ny"), gave("a", "x")), user("y"))
    once = order_turns(Request("m", turns=turns))
    assert as_read(once.turns) == (GO, CALL_A, tool(gave("a", "x\n\ny")))


# --- cost of a long history ---------------------------------------------------------------------


def long_history(exchanges: int) -> tuple[Turn, ...]:
    """Build a history as sent by Claude Code: results in user turns, with a reminder."""
    turns: list[Turn] = [user("<system-reminder>\nBe kind.\n</system-reminder>", "go")]
    for at in range(exchanges):
        turns.append(assistant(ReasoningBlock(f"thought {at}"), call(f"toolu_{at}")))
        turns.append(user(gave(f"toolu_{at}", "output " * 200), "mind the list"))
    return tuple(turns)


def test_created_turns_are_the_same_objects_each_time() -> None:
    turns = long_history(50)
    warm = PromptNormalizer()
    before = warm.normalize(Request("m", turns=turns[:-2]))
    after = warm.normalize(Request("m", turns=turns))
    closed = len(before.turns) - 2  # the last exchange may still grow
    assert all(map(lambda a, b: a is b, before.turns[:closed], after.turns))


def test_only_new_turns_are_processed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Turn] = []
    real = TextCleaner.clean_turn

    def spy(self: TextCleaner, turn: Turn) -> Turn:
        seen.append(turn)
        return real(self, turn)

    monkeypatch.setattr(TextCleaner, "clean_turn", spy)
    turns = long_history(200)
    warm = PromptNormalizer()
    for end in range(1, len(turns) + 1, 2):
        seen.clear()
        warm.normalize(Request("m", turns=turns[:end]))
        assert len(seen) <= 5


def test_the_cache_is_bounded() -> None:
    warm = PromptNormalizer(max_chars=200_000)
    for session in range(40):
        turns = (user(f"session {session}"), *long_history(20)[1:])
        warm.normalize(Request("m", turns=turns))
        held = sum(known.chars for known in warm._histories.values())
        assert held == warm._histories.total_size <= 200_000
    assert 0 < len(warm._histories) < 40
