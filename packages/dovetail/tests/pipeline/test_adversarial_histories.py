"""Malicious clients: invalid seals are ignored with a note, and edits are used as sent."""

import asyncio
import json
from collections.abc import Callable

import msgspec
import pytest
from forked_histories import (
    Cluster,
    GeneratedTurn,
    call_text,
    changed,
    make_cluster,
    map_calls,
    map_reasoning,
    reasoning_text,
    replace_reasoning,
    results,
    run,
    user,
    without_reasoning,
    without_reasoning_text,
)

from dovetail.ledger.keyring import Keyring
from dovetail_model import (
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    Turn,
)

replace = msgspec.structs.replace


REASONING_OUTPUT = "<think>\nfirst\n</think>\n\nok"


def _with_seal(generated: GeneratedTurn, seal: str | None) -> Turn:
    return map_reasoning(generated.turn, lambda b: replace(b, seal=seal))


BAD_SEALS: dict[str, tuple[Callable[[str], str], str | None]] = {
    "forged": (lambda seal: seal[:-5] + ("A" if seal[-5] != "A" else "B") + seal[-4:], "forged"),
    "truncated": (lambda seal: seal[:-8], "truncated"),
    "cut in its head": (lambda seal: seal[:20], "truncated"),
    "longer": (lambda seal: seal + "AAAA", "forged"),
    "of another version": (lambda seal: seal[:8] + "Z" + seal[9:], "version"),
    "of another vendor": (lambda seal: "EqQBCgIYAhIM" + seal, None),
    "not base64": (lambda seal: seal[:30] + "é!" + seal[32:], "forged"),
    "a lone surrogate": (lambda seal: seal[:30] + "\ud800" + seal[31:], "forged"),
}


@pytest.mark.parametrize("kind", BAD_SEALS)
def test_an_invalid_seal_is_ignored_with_a_note(kind: str) -> None:
    spoil, reason = BAD_SEALS[kind]

    async def check() -> None:
        generated = await make_cluster().generate(None, [user("hi")], REASONING_OUTPUT)
        elsewhere = make_cluster()  # its store is empty
        turn = _with_seal(generated, spoil(generated.seals[0]))
        prepared = await elsewhere.prepare([user("hi"), turn, user("so?")])
        assert not prepared.prompt.exact_turns
        assert "first" in elsewhere.text(prepared)
        assert "ok" in elsewhere.text(prepared)
        assert prepared.prompt.notes == ((f"seal_{reason}",) if reason else ())

    run(check())


def test_a_seal_under_another_key_or_for_another_tenant() -> None:
    async def check() -> None:
        generated = await make_cluster().generate(
            None, [user("hi")], REASONING_OUTPUT, tenant="ann"
        )
        history = [user("hi"), without_reasoning_text(generated.turn), user("so?")]
        for cluster, tenant, note in (
            (make_cluster(keys=Keyring([b"o" * 32])), "ann", "seal_unknown_key"),
            (make_cluster(), "bob", "seal_foreign"),
        ):
            prepared = await cluster.prepare(history, tenant=tenant)
            assert prepared.prompt.notes == (note,)
            assert "first" not in cluster.text(prepared)
            assert not prepared.prompt.exact_turns | prepared.prompt.rewritten_turns

    run(check())


def test_a_seal_swapped_with_another_turn() -> None:
    async def check() -> None:
        for replicas in (1, 2):
            cluster = make_cluster(replicas=replicas)
            one = await cluster.generate(None, [user("hi")], REASONING_OUTPUT)
            other = await cluster.generate(one, [user("go")], "<think>\nsecond\n</think>\n\ndone")
            swapped = [
                user("hi"),
                _with_seal(one, other.seals[0]),
                user("go"),
                _with_seal(other, one.seals[0]),
                user("so?"),
            ]
            prepared = await cluster.prepare(swapped, replica=replicas - 1)
            assert not prepared.prompt.exact_turns
            assert "edited_turn" in prepared.prompt.notes
            text = cluster.text(prepared)
            assert text.index("first") < text.index("ok") < text.index("second")

    run(check())


def test_handles_of_another_tenant_are_ignored() -> None:
    async def check() -> None:
        cluster = make_cluster()
        call = reasoning_text("secret") + call_text("{}")
        generated = await cluster.generate(None, [user("hi")], call, tenant="ann")
        for copy in (
            generated.turn,
            without_reasoning_text(generated.turn),
            without_reasoning(generated.turn),
        ):
            prepared = await cluster.prepare(
                [user("hi"), copy, results(generated, "x")], tenant="bob"
            )
            assert not prepared.prompt.history.entries
            has_reasoning = any(isinstance(b, ReasoningBlock) and b.text for b in copy.blocks)
            assert ("secret" in cluster.text(prepared)) == has_reasoning

    run(check())


OUTPUT = (
    "<think>\noriginal thought\n</think>\n\noriginal text"
    '<tool_call>\n{"name": "run", "arguments": {"command": "original one"}}\n</tool_call>'
    '<tool_call>\n{"name": "run", "arguments": {"command": "original two"}}\n</tool_call>'
)


def _first_call_gone(turn: Turn) -> Turn:
    gone = next(b for b in turn.blocks if isinstance(b, ToolCallBlock))
    return Turn(turn.role, tuple(b for b in turn.blocks if b is not gone))


def _argument(turn: Turn, value: object) -> Turn:
    given = json.dumps({"command": value})
    return map_calls(turn, lambda b: replace(b, arguments=given) if _is_first(b) else b)


def _is_first(call: ToolCallBlock) -> bool:
    return "original one" in call.arguments


def _reworded(turn: Turn, text: str) -> Turn:
    return changed(turn, lambda b: TextBlock(text) if isinstance(b, TextBlock) else b)


EDITS: dict[str, tuple[Callable[[Turn], Turn], str, str]] = {
    "an argument": (lambda turn: _argument(turn, "edited"), "edited", "original one"),
    "an argument's type": (lambda turn: _argument(turn, ["edited"]), '["edited"]', "original one"),
    "an argument, by a little": (
        lambda turn: _argument(turn, "Original one"),
        "Original one",
        "original one",
    ),
    "an argument taken away": (
        lambda turn: map_calls(turn, lambda b: replace(b, arguments="{}") if _is_first(b) else b),
        "original two",
        "original one",
    ),
    "text": (lambda turn: _reworded(turn, "edited"), "edited", "original text"),
    "text taken away": (lambda turn: _reworded(turn, ""), "original two", "original text"),
    "text, at its beginning": (
        lambda turn: _reworded(turn, "an original text"),
        "an original text",
        "\n\noriginal text",
    ),
    "a call taken away": (_first_call_gone, "original two", "original one"),
    "a thought": (lambda turn: replace_reasoning(turn, "edited"), "edited", "original thought"),
    "the name of a tool": (
        lambda turn: map_calls(turn, lambda b: replace(b, name="other") if _is_first(b) else b),
        '"other"',
        '"name": "run", "arguments": {"command": "original one"}',
    ),
}


@pytest.mark.parametrize("behind", [0, 1, 3], ids=lambda n: f"{n} known turns behind")
@pytest.mark.parametrize("edit", EDITS)
def test_edits_by_the_client_are_used(edit: str, behind: int) -> None:
    change, there, gone = EDITS[edit]

    async def check() -> None:
        cluster = make_cluster()
        generated = await cluster.generate(None, [user("hi")], OUTPUT)
        history = [user("hi"), change(generated.turn), results(generated, "a", "b")]
        last = generated
        for at in range(behind):
            new_turns = [results(generated, "a", "b")] if last is generated else [user("more")]
            last = await cluster.generate(
                last, new_turns, f"<think>\nlater {at}\n</think>\n\nanswer {at}"
            )
            history += [last.turn, user("more")]
        prepared = await cluster.prepare(history)
        text = cluster.text(prepared)
        assert there in text
        assert gone not in text
        assert 1 not in prepared.prompt.exact_turns
        assert prepared.prompt.exact_turns == {3 + 2 * at for at in range(behind)}

    run(check())


@pytest.mark.parametrize("place", ["user", "result"])
def test_edits_of_earlier_user_turns_and_results(place: str) -> None:
    async def check() -> None:
        cluster = make_cluster()
        generated = await cluster.generate(None, [user("original question")], OUTPUT)
        child = await cluster.generate(
            generated, [results(generated, "original result", "b")], "fine"
        )
        question = user("edited" if place == "user" else "original question")
        found = results(generated, "edited" if place == "result" else "original result", "b")
        prepared = await cluster.prepare([question, generated.turn, found, child.turn, user("so?")])
        text = cluster.text(prepared)
        assert "edited" in text
        assert ("original question" in text) == (place == "result")
        assert ("original result" in text) == (place == "user")

    run(check())


def test_replay_policies() -> None:
    async def check() -> None:
        for replay, shown in (("auto", "edited"), ("exact", "original text"), ("client", "edited")):
            cluster = make_cluster(replay)  # type: ignore[arg-type]
            generated = await cluster.generate(None, [user("hi")], OUTPUT)
            turn = _reworded(generated.turn, "edited")
            prepared = await cluster.prepare([user("hi"), turn, results(generated, "a", "b")])
            assert shown in cluster.text(prepared)
            assert bool(prepared.prompt.exact_turns) == (replay == "exact")
            unchanged = await cluster.prepare([*generated.history, results(generated, "a", "b")])
            assert bool(unchanged.prompt.exact_turns) == (replay != "client")

    run(check())


def test_the_same_request_twice_concurrently() -> None:
    async def check() -> None:
        cluster = make_cluster()
        one = await cluster.generate(None, [user("hi")], REASONING_OUTPUT)
        turns = [*one.history, user("go")]
        first, second = await asyncio.gather(*(cluster.prepare(turns, session="s") for _ in "ab"))
        assert first.prompt.ids == second.prompt.ids
        outputs = [f"<think>\n{name}\n</think>\n\ndone" for name in ("left", "right")]
        both = await asyncio.gather(
            *(cluster.generate(one, [user("go")], text) for text in outputs)
        )
        histories = [[*generated.history, user("so?")] for generated in both]
        prompts = await asyncio.gather(
            *(cluster.prepare(turns, session="s") for turns in histories)
        )
        for prepared, mine, theirs in zip(
            prompts, ("left", "right"), ("right", "left"), strict=True
        ):
            assert mine in cluster.text(prepared)
            assert theirs not in cluster.text(prepared)

    run(check())


def test_many_concurrent_sessions() -> None:
    async def session(cluster: Cluster, name: str) -> None:
        last: GeneratedTurn | None = None
        for at in range(8):
            text = f"<think>\nof {name} {at}\n</think>\n\nok"
            last = await cluster.generate(last, [user(f"step {at}")], text)
            await asyncio.sleep(0)
            prepared = await cluster.prepare([*last.history, user("so?")], session=name)
            whole = last.prepared.prompt.ids + last.ids
            assert prepared.prompt.ids[: len(whole)] == whole
            assert cluster.text(prepared).count("<think>\nof ") == at + 1

    async def check() -> None:
        cluster = make_cluster()
        await asyncio.gather(*(session(cluster, f"s{number}") for number in range(12)))

    run(check())
