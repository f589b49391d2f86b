"""Tools in every form, unique names, and the tool choice."""

from typing import Any

import msgspec
import pytest

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Finish,
    InvalidRequest,
    Request,
    TextBlock,
    ToolChoice,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
)
from dovetail_protocols.responses import CODEC


def decode(*tools: Any, **body: Any) -> Request:
    sent = {"model": "m", "input": [], "tools": list(tools), **body}
    return CODEC.decode(msgspec.json.encode(sent), {})


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **more}


def namespace(name: str, *names: str) -> dict[str, Any]:
    tools = [function(inner, description=inner) for inner in names]
    return {"type": "namespace", "name": name, "description": "About.", "tools": tools}


PATCH = {"type": "grammar", "syntax": "lark", "definition": "start: LINE+"}
TOOLS: list[tuple[str, dict[str, Any], ToolSpec]] = [
    ("function",
     function("f", description="d", strict=True, parameters={"type": "object"}),
     ToolSpec("f", "d", {"type": "object"}, strict=True)),
    ("nulls", function("f", description=None, strict=None, parameters=None), ToolSpec("f")),
    ("without_type", {"name": "f"}, ToolSpec("f")),
    ("in_the_form_of_chat",
     {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"a": 1}}},
     ToolSpec("f", "d", {"a": 1})),
    ("codex_sends_keys_nobody_knows", function("f", output_schema={}), ToolSpec("f")),
    ("deferred", function("f", defer_loading=True), ToolSpec("f", deferred=True)),
    ("codex_searches_for_tools",
     {"type": "tool_search", "execution": "client", "description": "d", "parameters": {"a": 1}},
     ToolSpec("tool_search", "d", {"a": 1})),
    ("codex_patches_by_a_grammar",
     {"type": "custom", "name": "apply_patch", "description": "d", "format": PATCH},
     ToolSpec("apply_patch", "d", custom=True, grammar="start: LINE+")),
    ("a_regular_expression_becomes_lark",
     {"type": "custom", "name": "p",
      "format": {"type": "grammar", "syntax": "regex", "definition": r"a/b+"}},
     ToolSpec("p", custom=True, grammar=r"start: /a\/b+/")),
    ("free_text", {"type": "custom", "name": "p", "format": {"type": "text"}},
     ToolSpec("p", custom=True)),
    ("custom_without_format", {"type": "custom", "name": "p"}, ToolSpec("p", custom=True)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tool", "expected"), [row[1:] for row in TOOLS], ids=[row[0] for row in TOOLS]
)
def test_tool(tool: dict[str, Any], expected: ToolSpec) -> None:
    assert decode(tool).tools == (expected,)


def test_namespace_is_flattened_and_both_names_are_stored() -> None:
    assert decode(namespace("mcp__docs", "search", "read")).tools == (
        ToolSpec("search", "About.\n\nsearch", {}, "mcp__docs", "mcp__docs__search"),
        ToolSpec("read", "read", {}, "mcp__docs", "mcp__docs__read"),
    )


def test_namespace_may_contain_custom_tools() -> None:
    inner = {"type": "custom", "name": "p"}
    found = decode({"type": "namespace", "name": "n", "tools": [inner]}).tools
    assert found == (ToolSpec("p", "", {}, "n", "n__p", custom=True),)


def test_colliding_names_get_a_suffix() -> None:
    request = decode(
        namespace("a", "b__c"), namespace("a__b", "c"), function("a__b__c"), function("c")
    )
    names = [spec.model_name for spec in request.tools]
    assert names == ["a__b__c_2", "a__b__c_3", "a__b__c", "c"]
    assert [(spec.namespace, spec.name) for spec in request.tools[:2]] == [
        ("a", "b__c"),
        ("a__b", "c"),
    ]


def test_redeclared_tool_keeps_its_position_with_the_new_definition() -> None:
    request = decode(function("f"), function("g"), function("f", description="new"))
    assert request.tools == (ToolSpec("f", "new"), ToolSpec("g"))


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search", "external_web_access": False},
        {"type": "tool_search", "execution": "server"},
        {"type": "file_search", "vector_store_ids": []},
        {"type": "local_shell"},
        {"type": "mcp", "server_label": "s", "tools": 3},
        {"type": "of_next_year"},
    ],
    ids=lambda tool: tool["type"],
)
def test_unsupported_tools_are_skipped_and_reported(tool: dict[str, Any]) -> None:
    request = decode(function("f"), tool)
    assert request.tools == (ToolSpec("f"),)
    assert request.ignored == ("tools[1]",)


def test_codex_adds_tools_as_items() -> None:
    more = {"type": "additional_tools", "role": "developer", "tools": [namespace("n", "x")]}
    request = decode(function("f"), input=[{"role": "user", "content": "a"}, more])
    assert [(spec.model_name, spec.deferred) for spec in request.tools] == [
        ("f", False),
        ("n__x", True),
    ]
    assert request.turns[1] == Turn("developer", (ToolReferenceBlock("x", "n"),))


def test_tools_found_by_a_search_are_offered_to_the_model() -> None:
    found = {"type": "tool_search_output", "call_id": "c", "execution": "client",
             "tools": [namespace("n", "x", "y"), function("f")]}  # fmt: skip
    request = decode(input=[{"type": "tool_search_call", "call_id": "c", "arguments": {}}, found])
    assert [spec.model_name for spec in request.tools] == ["n__x", "n__y", "f"]
    assert all(spec.deferred for spec in request.tools)
    references = (
        ToolReferenceBlock("x", "n"),
        ToolReferenceBlock("y", "n"),
        ToolReferenceBlock("f"),
    )
    assert request.turns[1].blocks == (ToolResultBlock("c", references),)


def test_search_without_results_is_an_empty_list() -> None:
    found = {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": []}
    request = decode(input=[{"type": "tool_search_call", "call_id": "c", "arguments": {}}, found])
    assert request.turns[1].blocks == (ToolResultBlock("c", (TextBlock('{"tools":[]}'),)),)


def test_found_tool_that_was_declared_already_stays_in_the_tool_list() -> None:
    found = {"type": "tool_search_output", "call_id": "c", "tools": [function("f")]}
    request = decode(
        function("f"), input=[{"type": "tool_search_call", "call_id": "c", "arguments": {}}, found]
    )
    assert request.tools == (ToolSpec("f"),)


@pytest.mark.parametrize("declared", [True, False])
def test_search_for_tools_is_an_item_of_its_own(declared: bool) -> None:
    search = {"type": "tool_search", "execution": "client", "parameters": {}}
    request = decode(*([search] if declared else [function("tool_search")]), stream=True)
    encoder = CODEC.stream(request, lambda prefix: f"{prefix}1", lambda: 0)
    frames = b"".join(
        encoder.encode([event])
        for event in (
            CallOpen(0, "tool_search", "call_1"),
            CallArgs(0, '{"query": '),
            CallArgs(0, '"fetch"}'),
            CallClose(0),
            Finish("tool_calls"),
        )
    )
    done = [
        event["item"]
        for line in frames.splitlines()
        if line.startswith(b"data: {")
        and (event := msgspec.json.decode(line[6:]))["type"] == "response.output_item.done"
    ]
    if declared:
        assert done == [
            {
                "type": "tool_search_call", "id": "tsc_1", "status": "completed",
                "call_id": "call_1", "arguments": {"query": "fetch"}, "execution": "client",
            }
        ]  # fmt: skip
        assert b"function_call_arguments" not in frames
    else:
        assert [item["type"] for item in done] == ["function_call"]


NAMED = {"type": "function", "name": "f"}
CHOICES: list[tuple[Any, ToolChoice]] = [
    (None, ToolChoice()),
    ("auto", ToolChoice()),
    ("none", ToolChoice("none")),
    ("required", ToolChoice("required")),
    ({"type": "required"}, ToolChoice("required")),
    (NAMED, ToolChoice("named", "f", parallel=False)),
    ({"type": "function", "function": {"name": "f"}}, ToolChoice("named", "f", parallel=False)),
    ({"type": "custom", "name": "p"}, ToolChoice("named", "p", parallel=False)),
    (
        {"type": "function", "name": "x", "namespace": "n"},
        ToolChoice("named", "n__x", parallel=False),
    ),
    ({"type": "function", "name": "x"}, ToolChoice("named", "n__x", parallel=False)),
    ({"type": "function", "name": "n__x"}, ToolChoice("named", "n__x", parallel=False)),
    (
        {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]},
        ToolChoice(allowed=frozenset({"f"})),
    ),
    (
        {"type": "allowed_tools", "mode": "required", "tools": [NAMED]},
        ToolChoice("required", allowed=frozenset({"f"})),
    ),
]
OFFERED = (function("f"), {"type": "custom", "name": "p"}, namespace("n", "x", "f"))


@pytest.mark.parametrize(("given", "expected"), CHOICES)
def test_choice(given: Any, expected: ToolChoice) -> None:
    assert decode(*OFFERED, tool_choice=given).tool_choice == expected


def test_allowed_tools_exclude_all_others() -> None:
    allowed = [NAMED, {"type": "function", "name": "x", "namespace": "n"}, {"type": "mcp"}, 3]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    request = decode(*OFFERED, tool_choice=choice)
    assert request.tool_choice.allowed == frozenset({"f", "n__x"})
    assert len(request.tools) == 4


def test_allowed_tools_that_do_not_exist_are_reported() -> None:
    allowed = [NAMED, {"type": "function", "name": "y"}, {"type": "mcp"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    assert decode(*OFFERED, tool_choice=choice).ignored == ("tool_choice.tools[1]",)


def test_complete_namespace_may_be_allowed() -> None:
    choice = {"type": "allowed_tools", "tools": [{"type": "namespace", "name": "n"}]}
    request = decode(*OFFERED, tool_choice=choice)
    assert request.tool_choice.allowed == frozenset({"n__x", "n__f"})


@pytest.mark.parametrize(
    ("tools", "choice"),
    [((function("f"),), {"type": "web_search_preview"}), (({"type": "web_search"},), "required")],
)
def test_unsupported_tool_choice_is_reported(tools: Any, choice: Any) -> None:
    request = decode(*tools, tool_choice=choice)
    assert request.tool_choice == ToolChoice()
    assert "tool_choice" in request.ignored


def test_one_call_at_a_time() -> None:
    assert not decode(parallel_tool_calls=False).tool_choice.parallel
    assert decode(parallel_tool_calls=None).tool_choice.parallel


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [3]}, "tools[0]"),
    ({"tools": [function("f", parameters=[])]}, "tools[0].parameters"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{}]}]}, "tools[0].tools[0].name"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": NAMED}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "odd"}}, "tool_choice.mode"),
    ({"input": [{"type": "additional_tools", "tools": [{}]}]}, "input[0].tools[0].name"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED)
def test_rejected(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(*body.pop("tools", ()), **body)
    assert caught.value.param == param
