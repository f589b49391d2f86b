"""Messages built from turns, for each difference between templates."""

import json
from typing import Any

import pytest

from dovetail.prompt.messages import (
    ChatMessage,
    MessageBuilder,
    ToolNames,
    escape_strings,
    format_tool_call,
    format_tools,
)
from dovetail.prompt.template import TemplateProfile
from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
)

THINKS = ("reasoning_content", "thinking")


def _as_it_is(text: str) -> str:
    return text


def _loud(text: str) -> str:
    return text.replace("<x>", "<!x>")


def _written(
    facts: TemplateProfile, *turns: Turn, system: str = "", calls_before: int = 0
) -> list[ChatMessage]:
    made = MessageBuilder(facts, _as_it_is, ToolNames(()), calls_before)
    return made.build((TextBlock(system),) if system else (), turns)


def _user(text: str) -> Turn:
    return Turn("user", (TextBlock(text),))


def _assistant(*blocks: Block) -> Turn:
    return Turn("assistant", blocks)


def _results(*pairs: tuple[str, str]) -> Turn:
    return Turn("tool", tuple(ToolResultBlock(id, (TextBlock(text),)) for id, text in pairs))


ONE = ToolCallBlock("toolu_1", "read", '{"path": "a"}')
TWO = ToolCallBlock("toolu_2", "list", "{}")
LOOP = (_user("Go."), _assistant(ONE, TWO), _results(("toolu_1", "1st"), ("toolu_2", "2nd")))


def test_a_conversation() -> None:
    assert _written(
        TemplateProfile(), *LOOP, _assistant(TextBlock("Done.")), system="Be brief."
    ) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                format_tool_call("call_0", "read", {"path": "a"}),
                format_tool_call("call_1", "list", {}),
            ],
        },
        {"role": "tool", "content": "1st", "tool_call_id": "call_0", "name": "read"},
        {"role": "tool", "content": "2nd", "tool_call_id": "call_1", "name": "list"},
        {"role": "assistant", "content": "Done."},
    ]


def test_empty_system_text_gives_no_system_message() -> None:
    assert [m["role"] for m in _written(TemplateProfile(), _user("Go."))] == ["user"]


@pytest.mark.parametrize("system", ["refused", "dropped"])
def test_a_template_that_does_not_render_system_messages(system: Any) -> None:
    apart = _written(TemplateProfile(system=system), _user("Go."), system="Be brief.")
    assert apart == [
        {"role": "user", "content": "Be brief."},
        {"role": "user", "content": "Go."},
    ]
    joined = _written(
        TemplateProfile(system=system, consecutive_users=False), _user("Go."), system="Be brief."
    )
    assert joined == [{"role": "user", "content": "Be brief.\n\nGo."}]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_turn_inside_the_conversation(role: Any) -> None:
    turns = (_user("Go."), _assistant(TextBlock("Yes.")), Turn(role, (TextBlock("Mind it."),)))
    assert _written(TemplateProfile(), *turns)[-1] == {"role": "system", "content": "Mind it."}
    for inside in ("dropped", "refused"):
        facts = TemplateProfile(system_inside=inside)
        assert _written(facts, *turns)[-1] == {"role": "user", "content": "Mind it."}


def test_consecutive_user_turns() -> None:
    turns = (_user("One."), _user("Two."), _user("Three."))
    apart = _written(TemplateProfile(), *turns)
    assert [m["content"] for m in apart] == ["One.", "Two.", "Three."]
    facts = TemplateProfile(consecutive_users=False)
    assert _written(facts, *turns) == [{"role": "user", "content": "One.\n\nTwo.\n\nThree."}]
    facts = TemplateProfile(consecutive_users=False, content="parts")
    assert _written(facts, *turns) == [
        {"role": "user", "content": [{"type": "text", "text": "One.\n\nTwo.\n\nThree."}]}
    ]


def test_parallel_calls_are_split() -> None:
    """Templates with one call per turn: each call with its result, the text with the first."""
    turns = (
        _user("Go."),
        _assistant(TextBlock("Both."), ONE, TWO),
        _results(("toolu_1", "1st"), ("toolu_2", "2nd")),
        _assistant(TextBlock("Done.")),
    )
    split = _written(TemplateProfile(many_calls=False), *turns)
    assert split[1:] == [
        {
            "role": "assistant",
            "content": "Both.",
            "tool_calls": [format_tool_call("call_0", "read", {"path": "a"})],
        },
        {"role": "tool", "content": "1st", "tool_call_id": "call_0", "name": "read"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [format_tool_call("call_1", "list", {})],
        },
        {"role": "tool", "content": "2nd", "tool_call_id": "call_1", "name": "list"},
        {"role": "assistant", "content": "Done."},
    ]


@pytest.mark.parametrize(
    "results",
    [
        [("toolu_1", "first"), ("toolu_1", "second"), ("toolu_2", "third")],
        [("toolu_2", "third")],
        [("toolu_1", "first"), ("toolu_2", "second"), ("toolu_9", "third")],
        [],
    ],
    ids=["two for one call", "one missing", "one of nobody's", "none"],
)
@pytest.mark.parametrize("many", [True, False])
def test_every_result_is_rendered(many: bool, results: list[tuple[str, str]]) -> None:
    turns = (_user("Go."), _assistant(ONE, TWO), _results(*results), _user("On."))
    shown = _written(TemplateProfile(many_calls=many), *turns)
    contents = [m["content"] for m in shown if m["content"] in ("first", "second", "third")]
    assert sorted(contents) == sorted(text for _, text in results)


@pytest.mark.parametrize(
    ("style", "ids"),
    [
        ("any", ["call_3", "call_4"]),
        ("nine", ["call00003", "call00004"]),
        ("kimi", ["functions.read:3", "functions.list:4"]),
    ],
)
def test_call_ids_are_numbered_in_the_style_of_the_template(style: Any, ids: list[str]) -> None:
    shown = _written(TemplateProfile(call_ids=style), *LOOP, calls_before=3)
    assert [call["id"] for call in shown[1]["tool_calls"]] == ids
    assert [m["tool_call_id"] for m in shown[2:]] == ids


def test_ids_of_nine_characters_have_nine() -> None:
    shown = _written(TemplateProfile(call_ids="nine"), *LOOP, calls_before=123_456)
    ids = [call["id"] for call in shown[1]["tool_calls"]]
    assert [len(id) for id in ids] == [9, 9]
    assert len(set(ids)) == 2


def test_calls_are_numbered_across_the_history() -> None:
    again = ToolCallBlock("toolu_3", "read", "{}")
    shown = _written(TemplateProfile(), *LOOP, _assistant(again), _results(("toolu_3", "3rd")))
    assert shown[-2]["tool_calls"][0]["id"] == shown[-1]["tool_call_id"] == "call_2"


@pytest.mark.parametrize("rewritten", ["toolu1", "toolu-1", "toolu_1"])
def test_results_match_calls_by_letters_and_digits(rewritten: str) -> None:
    shown = _written(TemplateProfile(), _user("Go."), _assistant(ONE), _results((rewritten, "1st")))
    assert (shown[-1]["tool_call_id"], shown[-1]["name"]) == ("call_0", "read")


def test_result_without_a_call_becomes_a_user_message() -> None:
    """Templates reject or drop such a result. Calls of earlier turns already have results."""
    for turns in (
        (_user("Go."), _results(("toolu_1", "1st"))),
        (_user("Go."), _assistant(ONE), _results(("toolu_9", "1st"))),
        (*LOOP, _assistant(ToolCallBlock("toolu_3", "read", "{}")), _results(("toolu_1", "1st"))),
    ):
        assert _written(TemplateProfile(), *turns)[-1] == {"role": "user", "content": "1st"}


def test_ids_generated_by_the_model_are_preserved() -> None:
    made = MessageBuilder(TemplateProfile(call_ids="kimi"), _as_it_is, ToolNames(()))
    numbered = made.number_calls(_assistant(ONE, TWO), ["functions.read:7", None])
    assert numbered == [("functions.read:7", "read"), ("functions.list:1", "list")]
    results = made.build_turn(_results(("toolu_2", "2nd"), ("toolu_1", "1st")))
    assert [m["tool_call_id"] for m in results] == ["functions.list:1", "functions.read:7"]


def test_content_in_parts() -> None:
    shown = _written(TemplateProfile(content="parts"), *LOOP, system="Be brief.")
    assert shown[0]["content"] == [{"type": "text", "text": "Be brief."}]
    assert shown[1]["content"] == [{"type": "text", "text": "Go."}]
    assert shown[3]["content"] == [{"type": "text", "text": "1st"}]


REASONING_TURN = _assistant(
    ReasoningBlock("Hm."), TextBlock("Look."), ONE, ReasoningBlock("Oh."), TWO
)


def test_reasoning_is_set_in_every_field_that_is_read() -> None:
    (message,) = _written(TemplateProfile(reasoning_fields=THINKS), REASONING_TURN)
    assert [message[field] for field in THINKS] == ["Hm.\nOh."] * 2
    assert message["content"] == "Look."


def test_reasoning_without_a_field_is_omitted() -> None:
    (message,) = _written(TemplateProfile(), REASONING_TURN)
    assert set(message) == {"role", "content", "tool_calls"}


def test_text_joins_reasoning_if_only_one_is_rendered() -> None:
    facts = TemplateProfile(reasoning_fields=THINKS, text_with_reasoning=False)
    (message,) = _written(facts, REASONING_TURN)
    assert (message["thinking"], message["content"]) == ("Hm.\nOh.\nLook.", "")
    (without_calls,) = _written(facts, _assistant(ReasoningBlock("Hm."), TextBlock("Look.")))
    assert (without_calls["thinking"], without_calls["content"]) == ("Hm.", "Look.")


@pytest.mark.parametrize("content", ["string", "parts"])
def test_reasoning_as_parts(content: Any) -> None:
    (message,) = _written(TemplateProfile(thinking_parts=True, content=content), REASONING_TURN)
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm.\nOh."},
        {"type": "text", "text": "Look."},
    ]
    (plain,) = _written(TemplateProfile(thinking_parts=True), _assistant(TextBlock("Look.")))
    assert plain["content"] == "Look."


def test_calls_with_null_content() -> None:
    facts = TemplateProfile(wants_null=True, thinking_parts=True)
    (alone,) = _written(facts, _assistant(ONE))
    assert alone["content"] is None
    (both,) = _written(facts, _assistant(TextBlock("Look."), ONE))
    assert both["content"] == "Look."
    (reasoning,) = _written(facts, _assistant(ReasoningBlock("Hm."), ONE))
    assert reasoning["content"] == [{"type": "thinking", "thinking": "Hm."}]
    (text_only,) = _written(facts, _assistant(TextBlock("Look.")))
    assert text_only["content"] == "Look."


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (ToolCallBlock("a", "f", '{"b": 1, "a": [2.0]}'), {"b": 1, "a": [2.0]}),
        (ToolCallBlock("a", "f", ""), {}),
        (ToolCallBlock("a", "f", '{"cut": "of'), {"input": '{"cut": "of'}),
        (ToolCallBlock("a", "f", "[1]"), {"input": "[1]"}),
        (ToolCallBlock("a", "f", "*** Begin", custom=True), {"input": "*** Begin"}),
        (ToolCallBlock("a", "f", '{"a": 1}', custom=True), {"input": '{"a": 1}'}),
        (ToolCallBlock("a", "f", '{"é": "<x>"}'), {"é": "<!x>"}),
        (ToolCallBlock("a", "f", '{"<x>": 1}'), {"<!x>": 1}),
        (ToolCallBlock("a", "f", "<x>", custom=True), {"input": "<!x>"}),
        (ToolCallBlock("a", "f", "<x>{cut"), {"input": "<!x>{cut"}),
    ],
    ids=lambda value: value.arguments if isinstance(value, ToolCallBlock) else "",
)
def test_arguments(call: ToolCallBlock, value: dict[str, Any]) -> None:
    as_object = MessageBuilder(TemplateProfile(), _loud, ToolNames(()))
    as_text = MessageBuilder(TemplateProfile(arguments="string"), _loud, ToolNames(()))
    assert as_object.format_arguments(call) == value
    assert json.loads(as_text.format_arguments(call)) == value
    assert "\\u" not in as_text.format_arguments(call)


def test_arguments_nested_too_deep_to_walk() -> None:
    deep = '{"a":' * 600 + "1" + "}" * 600
    for facts in (TemplateProfile(), TemplateProfile(arguments="string")):
        assert MessageBuilder(facts, _as_it_is, ToolNames(())).format_arguments(
            ToolCallBlock("a", "f", deep)
        )


def test_tool_names() -> None:
    tools = [
        ToolSpec("read", namespace="fs", shown_as="fs__read"),
        ToolSpec("read"),
        ToolSpec("mcp__x__y"),
    ]
    names = ToolNames(tools)
    shown = [names.get(ToolCallBlock("", tool.name, "", tool.namespace)) for tool in tools]
    assert shown == [tool.model_name for tool in tools]
    assert len(set(shown)) == 3
    gone = ToolCallBlock("", "write", "", namespace="fs")
    assert "write" in names.get(gone)
    assert names.get(ToolCallBlock("", "write", "")) == "write"
    made = MessageBuilder(TemplateProfile(), _as_it_is, names)
    (message,) = made.build_turn(_assistant(ToolCallBlock("a", "read", "{}", namespace="fs")))
    assert message["tool_calls"][0]["function"]["name"] == tools[0].model_name
    assert made.build_turn(_results(("a", "x")))[0]["name"] == tools[0].model_name


def test_tool_definitions() -> None:
    schema = {"type": "object", "properties": {"<x>": {"enum": ["<x>", 1, None]}}}
    tools = [
        ToolSpec("read", "Reads <x>.", schema),
        ToolSpec("patch", "Patches.", custom=True),
        ToolSpec("date", "Dates.", custom=True, grammar='start: "<x>"'),
    ]
    read, patch, date = format_tools(tools, _loud)
    assert read == {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Reads <!x>.",
            "parameters": {"type": "object", "properties": {"<!x>": {"enum": ["<!x>", 1, None]}}},
        },
    }
    parameters = patch["function"]["parameters"]
    assert parameters["properties"] == {"input": {"type": "string"}}
    assert parameters["required"] == ["input"]
    description = date["function"]["parameters"]["properties"]["input"]["description"]
    assert description.endswith('grammar:\nstart: "<!x>"')


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (TextBlock("Hi."), "Hi."),
        (
            ImageBlock("image/png", "AAAA"),
            "[image: image/png, 3 bytes; this model reads only text]",
        ),
        (DocumentBlock(title="a.pdf", text="Its words."), "Its words."),
        (DocumentBlock(title="a.pdf", data="AAAA"), "[document: a.pdf, 3 bytes]"),
        (DocumentBlock(url="somewhere"), "[document: somewhere]"),
    ],
)
def test_blocks_without_text(block: Any, shown: str) -> None:
    facts = TemplateProfile()
    (user,) = _written(facts, Turn("user", (TextBlock("See:"), block)))
    assert user["content"] == f"See:\n{shown}"
    result = Turn("tool", (ToolResultBlock("toolu_1", (block, TextBlock("end"))),))
    assert _written(facts, _assistant(ONE), result)[-1]["content"] == f"{shown}\nend"


def test_every_text_is_escaped() -> None:
    made = MessageBuilder(TemplateProfile(reasoning_fields=("thinking",)), _loud, ToolNames(()))
    hit = "a <x> b"
    turns = (
        _user(hit),
        Turn("system", (TextBlock(hit),)),
        _assistant(
            ReasoningBlock(hit), TextBlock(hit), ToolCallBlock("c", "f", json.dumps({"k": hit}))
        ),
        _results(("c", hit)),
    )
    shown = json.dumps(made.build((TextBlock(hit),), turns))
    assert shown.count("<!x>") == 7
    assert "<x>" not in shown


def test_an_empty_turn_gives_no_message() -> None:
    """A client drops the only call of a truncated turn."""
    assert _written(TemplateProfile(), _user("Go."), _assistant(), _user("On.")) == [
        {"role": "user", "content": "Go."},
        {"role": "user", "content": "On."},
    ]
    assert _written(TemplateProfile(), _assistant(ReasoningBlock("Hm."))) == []
    assert (
        len(_written(TemplateProfile(reasoning_fields=THINKS), _assistant(ReasoningBlock("Hm."))))
        == 1
    )


def test_nested_keys_and_values_are_escaped() -> None:
    value = {"<x>": ["<x>", ("<x>", 1), {"a": "<x>"}], "n": None, "f": 1.5, "t": True}
    assert escape_strings(value, _loud) == {
        "<!x>": ["<!x>", ["<!x>", 1], {"a": "<!x>"}],
        "n": None,
        "f": 1.5,
        "t": True,
    }
