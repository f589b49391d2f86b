"""Content that a client moves stays where the model read it, and nothing else is restored."""

from collections.abc import Sequence

import pytest

from dovetail.prompt.moved_content import MovedContent, SentTurns
from dovetail_model import (
    Block,
    Identity,
    Message,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

CONTEXT = "<<<BEGIN CONTEXT>>>\nrunning: none"
NEWER = "<<<BEGIN CONTEXT>>>\nrunning: one"


def turn(role: Role, *blocks: Block | str) -> Turn:
    return Turn(role, tuple(TextBlock(b) if isinstance(b, str) else b for b in blocks))


def _call(id: str) -> ToolCallBlock:
    return ToolCallBlock(id, "run", "{}")


def call(id: str) -> Turn:
    return turn("assistant", _call(id))


def result(id: str, *more: str) -> Turn:
    return turn("user", ToolResultBlock(id, (TextBlock("a file"),)), *more)


class Session:
    """A client and the memory of the server."""

    def __init__(self, session: str | None = None, tenant: str = "t") -> None:
        self.moved = MovedContent()
        self.identity = Identity(tenant=tenant, session=session)

    def send(self, *turns: Turn, response: Turn | None = None) -> tuple[Turn, ...]:
        """Send a request and record the response to it. Returns the turns with moved content."""
        used = self.moved.restore(self.identity, turns).turns
        if response is not None:
            message = Message(response.blocks)  # type: ignore[arg-type]
            self.moved.record(self.identity, SentTurns(turns, used, 100), message)
        return used


@pytest.mark.parametrize("as_message", [True, False], ids=["message", "block"])
def test_moved_context_stays_through_a_tool_loop(as_message: bool) -> None:
    def question(*more: str) -> list[Turn]:
        if as_message:
            return [turn("user", "Go."), *(turn("user", text) for text in more)]
        return [turn("user", "Go.", *more)]

    client = Session()
    first = [*question(CONTEXT)]
    assert client.send(*first, response=call("c1")) == tuple(first)
    used = client.send(*question(), call("c1"), result("c1", NEWER), response=call("c2"))
    assert used == (*first, call("c1"), result("c1", NEWER))
    used = client.send(
        *question(), call("c1"), result("c1"), call("c2"), result("c2", CONTEXT),
        response=turn("assistant", "Done."),
    )  # fmt: skip
    assert used == (*first, call("c1"), result("c1", NEWER), call("c2"), result("c2", CONTEXT))


def test_session_id_covers_responses_without_calls() -> None:
    client = Session("s-1")
    client.send(turn("user", "Go.", CONTEXT), response=turn("assistant", "Done."))
    used = client.send(turn("user", "Go."), turn("assistant", "Done."), turn("user", "On.", NEWER))
    assert used[0] == turn("user", "Go.", CONTEXT)


def test_text_at_the_end_of_one_block_is_restored() -> None:
    client = Session()
    client.send(turn("user", f"Go.\n\n{CONTEXT}"), response=call("c1"))
    used = client.send(turn("user", "Go."), call("c1"), result("c1", NEWER))
    assert used[0] == turn("user", f"Go.\n\n{CONTEXT}")


@pytest.mark.parametrize(
    ("history", "why"),
    [
        ([turn("user", "Go."), call("c1"), result("c1")], "nothing at the end"),
        ([turn("user", "Go."), call("c1"), result("c1", "Unrelated text.")], "another text"),
        ([turn("user", "Stop."), call("c1"), result("c1", NEWER)], "an edited message"),
        ([turn("user", "Go."), call("c9"), result("c9", NEWER)], "an unknown call"),
        ([turn("user"), call("c1"), result("c1", "Go.")], "another end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_changes_are_not_undone(history: Sequence[Turn], why: str) -> None:
    client = Session()
    client.send(turn("user", "Go.", CONTEXT), response=call("c1"))
    assert client.send(*history) == tuple(history), why


def test_turns_of_other_tenants_are_not_used() -> None:
    client = Session()
    client.send(turn("user", "Go.", CONTEXT), response=call("c1"))
    client.identity = Identity(tenant="another")
    history = (turn("user", "Go."), call("c1"), result("c1", NEWER))
    assert client.send(*history) == history


def test_edited_assistant_turn_ends_the_restoration() -> None:
    client = Session("s-1")
    client.send(turn("user", "Go.", CONTEXT), response=call("c1"))
    client.send(turn("user", "Go."), call("c1"), result("c1", NEWER), response=call("c2"))
    edited = turn("assistant", "Edited.", ToolCallBlock("c1", "run", "{}"))
    used = client.send(turn("user", "Go."), edited, result("c1"), call("c2"), result("c2", CONTEXT))
    assert used == (
        turn("user", "Go.", CONTEXT), edited, result("c1"), call("c2"), result("c2", CONTEXT)
    )  # fmt: skip


def test_memory_is_bounded() -> None:
    moved = MovedContent(max_chars=1000)
    for at in range(50):
        turns = (turn("user", "Go.", CONTEXT),)
        message = Message((ToolCallBlock(f"c{at}", "run", "{}"),))
        moved.record(Identity(tenant="t"), SentTurns(turns, turns, 100), message)
    old = (turn("user", "Go."), call("c1"), result("c1", NEWER))
    assert moved.restore(Identity(tenant="t"), old).turns == old


def test_long_conversation_does_not_displace_others() -> None:
    """Only the last requests of each are stored: all of them together would need too much."""
    moved, identity = MovedContent(max_chars=1000), Identity(tenant="t")
    question = (turn("user", "Go.", CONTEXT),)
    moved.record(identity, SentTurns(question, question, 100), Message((_call("other"),)))
    history: tuple[Turn, ...] = (turn("user", "Go."),)
    for at in range(20):
        moved.record(identity, SentTurns(history, history, 200), Message((_call(f"c{at}"),)))
        history = (*history, call(f"c{at}"), result(f"c{at}"))
    later = (turn("user", "Go."), call("other"), result("other", NEWER))
    assert moved.restore(identity, later).turns == (*question, *later[1:])
