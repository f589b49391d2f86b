"""Unusual requests give a prompt or a clear error and never crash."""

from contextlib import nullcontext, suppress

import pytest
from forked_histories import (
    RUN,
    make_cluster,
    results,
    run,
    user,
)
from real_models import PAIRS, Pair, model, require

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import ChatPreparer
from dovetail_model import (
    InvalidRequest,
    ReasoningBlock,
    Request,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)


def _preparer(loaded: Model) -> ChatPreparer:
    return ChatPreparer(loaded, Ledger(MemoryLedgerStore()), Keyring([b"a" * 32]))


def _deep(levels: int) -> str:
    return '{"command": ' + '{"a": ' * levels + "1" + "}" * levels + "}"


ODD_ARGUMENTS = {
    "nested 100": _deep(100),
    "nested 400": _deep(400),
    "nested 900": _deep(900),
    "nested 5000": _deep(5000),
    "lists": '{"command": ' + "[" * 700 + "]" * 700 + "}",
    "a huge number": '{"command": ' + "9" * 4000 + "}",
    "a monstrous number": '{"command": ' + "9" * 6000 + "}",
    "a huge exponent": '{"command": 1e999}',
    "not a number": '{"command": NaN, "x": -Infinity}',
    "lone surrogates": '{"command": "\\ud800", "\\udfff": 1}',
    "a raw lone surrogate": '{"command": "\ud800"}',
    "twice the same key": '{"command": 1, "command": 2}',
    "no object": "[1, 2]",
    "a string": '"ls"',
    "null": "null",
    "nothing": "",
    "no JSON": '{"command": ',
    "an empty key": '{"": {"": ""}}',
    "control characters": '{"command": "\\u0000\\u0007\\u001b"}',
}


TOO_DEEP = ("nested 400", "nested 900", "lists")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_unusual_arguments_never_raise(pair: Pair) -> None:
    """Arguments that are nested too deeply for a template are an invalid request."""
    require(pair)
    preparer = _preparer(model(pair))
    for kind, arguments in ODD_ARGUMENTS.items():
        call = ToolCallBlock("call_1", "run", arguments)
        turns = (
            user("hi"),
            Turn("assistant", (call,)),
            Turn("tool", (ToolResultBlock("call_1", (TextBlock("x"),)),)),
        )
        too_deep = suppress(InvalidRequest) if pair.name == "Gemma-4" else nullcontext()
        with too_deep if kind in TOO_DEEP else nullcontext():
            prepared = run(preparer.prepare(Request("m", turns, tools=(RUN,))))
            assert len(prepared.prompt.ids) > 0, kind


@pytest.mark.parametrize("kind", ODD_ARGUMENTS)
def test_unusual_arguments_from_the_model(kind: str) -> None:
    arguments = ODD_ARGUMENTS[kind].encode("utf-8", "replace").decode()

    async def check() -> None:
        cluster = make_cluster()
        text = f'<tool_call>\n{{"name": "run", "arguments": {arguments}}}\n</tool_call>'
        generated = await cluster.generate(None, [user("hi")], text)
        new_turns = (
            [results(generated, *("x" for _ in generated.calls))]
            if generated.calls
            else [user("so?")]
        )
        prepared = await cluster.prepare([*generated.history, *new_turns])
        assert prepared.prompt.exact_turns == {1}

    run(check())


NOTHING: dict[str, tuple[Turn, ...]] = {
    "no turns": (),
    "an empty user": (Turn("user", (TextBlock(""),)),),
    "a user without blocks": (Turn("user", ()),),
}
ODD: dict[str, tuple[Turn, ...]] = {
    "blank": (Turn("user", (TextBlock(" \n"),)), Turn("assistant", (TextBlock(""),)), user("x")),
    "an assistant first": (Turn("assistant", (TextBlock("Hello!"),)), user("hi")),
    "assistants in a row": (
        user("hi"),
        Turn("assistant", (TextBlock("a"),)),
        Turn("assistant", (TextBlock("b"),)),
        user("x"),
    ),
    "a result for nothing": (Turn("tool", (ToolResultBlock("call_9", (TextBlock("x"),)),)),),
    "a result without text": (
        user("hi"),
        Turn("assistant", (ToolCallBlock("c", "run", "{}"),)),
        Turn("tool", (ToolResultBlock("c", ()),)),
    ),
    "a call without a result": (
        user("hi"),
        Turn("assistant", (ToolCallBlock("c", "run", "{}"),)),
        user("Stop!"),
    ),
    "a call without a name": (
        user("hi"),
        Turn("assistant", (ToolCallBlock("", "", "{}"),)),
        Turn("tool", (ToolResultBlock("", (TextBlock("x"),)),)),
    ),
    "an empty thought": (
        user("hi"),
        Turn("assistant", (ReasoningBlock("", ""), TextBlock("x"))),
        user("x"),
    ),
    "only a thought": (user("hi"), Turn("assistant", (ReasoningBlock("Hm"),)), user("x")),
    "systems everywhere": (
        Turn("system", (TextBlock("a"),)),
        user("hi"),
        Turn("system", (TextBlock("b"),)),
        Turn("assistant", (TextBlock("x"),)),
        Turn("developer", (TextBlock("c"),)),
        user("x"),
    ),
    "lone surrogates": (user("a\ud800b"), Turn("assistant", (TextBlock("\udfff"),)), user("x")),
    "a prefill": (user("hi"), Turn("assistant", (TextBlock("Well"),))),
    "a prefilled thought": (user("hi"), Turn("assistant", (ReasoningBlock("Hm"),))),
    "a prefilled call": (user("hi"), Turn("assistant", (ToolCallBlock("c", "run", "{}"),))),
}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_empty_request_is_a_prompt_or_a_clear_error(pair: Pair) -> None:
    """A few templates need at least one message."""
    require(pair)
    preparer = _preparer(model(pair))
    for turns in NOTHING.values():
        with suppress(InvalidRequest):
            run(preparer.prepare(Request("m", turns, tools=(RUN,))))


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_unusual_conversations_never_raise(pair: Pair, kind: str) -> None:
    require(pair)
    preparer = _preparer(model(pair))
    for tools in ((RUN,), ()):
        request = Request("m", ODD[kind], tools=tools)
        prepared = run(preparer.prepare(request))
        text = model(pair).tokenizer.decode(prepared.prompt.ids)
        for turn in ODD[kind]:
            for block in turn.blocks:
                if turn.role == "user" and isinstance(block, TextBlock) and block.text.isalnum():
                    assert block.text in text


def test_ten_thousand_turns() -> None:
    async def check() -> None:
        cluster = make_cluster()
        history = [
            turn
            for at in range(5000)
            for turn in (user(f"q{at}"), Turn("assistant", (TextBlock(f"a{at}"),)))
        ]
        prepared = await cluster.prepare([*history, user("last")], session="s")
        generated = await cluster.generate(
            None, [*history, user("last")], "<think>\nfirst\n</think>\n\nok"
        )
        grown = await cluster.prepare([*generated.history, user("more")], session="s")
        assert grown.prompt.origin == "grown"
        whole = prepared.prompt.ids + generated.ids
        assert grown.prompt.ids[: len(whole)] == whole

    run(check())


def test_prefill_of_a_generated_turn() -> None:
    """The client sends back a generated turn to be continued."""

    async def check() -> None:
        cluster = make_cluster()
        one = await cluster.generate(None, [user("hi")], "<think>\nfirst\n</think>\n\nok")
        other = await cluster.generate(one, [user("go")], "<think>\nsecond\n</think>\n\ndone")
        prepared = await cluster.prepare(other.history)
        text = cluster.text(prepared)
        assert text.endswith("done")
        assert text.count("<|im_start|>assistant") == 2

    run(check())
