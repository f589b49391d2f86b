"""The tools of the evaluation, the validation of calls, and the tasks."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from eval_fixture import PERFECT
from hypothesis import given
from hypothesis import strategies as st

from dovetail.eval.tasks import TASKS
from dovetail.eval.tools import (
    TOOLS,
    ToolError,
    Workspace,
    build_schema,
    build_tool_specs,
    check_call,
)
from dovetail_parsers import parse

ORDER = {
    "customer": {"name": "A", "address": {"street": "B", "city": "C", "postcode": "D"}},
    "items": [{"sku": "x", "quantity": 1}],
    "shipping": "express",
    "gift": False,
}


def changed(**fields: Any) -> str:
    return json.dumps({**ORDER, **fields})


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("read_file", '{"path": "a"}', "known json fits"),
        ("read_file", '{"path": 5}', "known json"),
        ("read_file", '{"path": "a", "more": 1}', "known json"),
        ("read_file", "{}", "known json"),
        ("read_file", "[]", "known json"),
        ("read_file", '{"path": "a"', "known"),
        ("read_file", "path=a", "known"),
        ("read_file", '{"path": "\\ud800"}', "known"),
        ("calculate", '{"operation": "add", "numbers": [NaN]}', "known"),
        ("calculate", f'{{"operation": "add", "numbers": {"[" * 480}{"]" * 480}}}', "known json"),
        ("list_files", "", "known json fits"),
        ("no_such_tool", '{"path": "a"}', "json"),
        ("no_such_tool", "{", ""),
        ("calculate", '{"operation": "add", "numbers": [1, 2.5]}', "known json fits"),
        ("calculate", '{"operation": "divide", "numbers": [1]}', "known json"),
        ("calculate", '{"operation": "add", "numbers": []}', "known json"),
        ("place_order", changed(), "known json fits"),
        ("place_order", changed(items=[{"sku": "x", "quantity": 2.0}]), "known json fits"),
        ("place_order", changed(items=[{"sku": "x", "quantity": 2.5}]), "known json"),
        ("place_order", changed(items=[{"sku": "x", "quantity": 0}]), "known json"),
        ("place_order", changed(items=[]), "known json"),
        ("place_order", changed(gift="yes"), "known json"),
        ("place_order", changed(customer={"name": "A"}), "known json"),
    ],
)
def test_call_is_validated_by_name_json_and_schema(name: str, arguments: str, right: str) -> None:
    judged = check_call(name, arguments)
    found = {
        "known": judged.is_known_tool,
        "json": judged.is_valid_json,
        "fits": judged.matches_schema,
    }
    assert " ".join(word for word, holds in found.items() if holds) == right
    assert bool(judged.problem) == (judged.tool is None) == (right != "known json fits")


@pytest.mark.parametrize("name", TOOLS)
def test_schemas_have_no_references_and_list_all_arguments(name: str) -> None:
    found = build_schema(TOOLS[name])
    assert not {"$ref", "$defs", "title"} & set(keys(found))
    assert set(found["properties"]) == set(TOOLS[name].__struct_fields__)
    assert found["type"] == "object"
    assert found["additionalProperties"] is False


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def test_every_tool_has_a_description() -> None:
    assert all(tool.description and "\n" not in tool.description for tool in build_tool_specs())


@pytest.mark.parametrize(
    "path", ["../a", "/etc/passwd", "a/../../b", "", ".", "a\0b", "\ud800", "a/" * 1500 + "b"]
)
def test_paths_outside_the_folder_are_rejected(tmp_path: Path, path: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "a").write_text("secret")
    for act in (Workspace.read, lambda folder, path: folder.write(path, "x")):
        with pytest.raises(ToolError):
            act(Workspace(inside), path)
    assert sorted(place.name for place in tmp_path.rglob("*")) == ["a", "inside"]


@given(name=st.sampled_from([*TOOLS]), arguments=st.text())
def test_validation_never_raises(name: str, arguments: str) -> None:
    judged = check_call(name, arguments)
    assert not judged.matches_schema or judged.tool is not None


@given(path=st.text(min_size=1), content=st.text())
def test_tools_raise_only_tool_errors(tmp_path_factory: Any, path: str, content: str) -> None:
    root = tmp_path_factory.mktemp("folder")
    folder = Workspace(root)
    for name, arguments in (
        ("write_file", {"path": path, "content": content}),
        ("read_file", {"path": path}),
        ("edit_file", {"path": path, "old_text": content or "x", "new_text": "y"}),
        ("find_text", {"text": path}),
        ("list_files", {}),
    ):
        tool = check_call(name, json.dumps(arguments)).tool
        assert tool is not None
        with suppress(ToolError):
            tool.run(folder)


def test_edit_requires_a_unique_text(tmp_path: Path) -> None:
    folder = Workspace(tmp_path)
    folder.write("a", "one two two")
    for old, times in (("three", 0), ("two", 2)):
        with pytest.raises(ToolError, match=f"stands {times} times"):
            run(folder, "edit_file", path="a", old_text=old, new_text="x")
    run(folder, "edit_file", path="a", old_text="one", new_text="1")
    assert folder.read("a") == "1 two two"


def test_record_is_returned_on_the_second_call(tmp_path: Path) -> None:
    folder = Workspace(tmp_path, {"k": "v"})
    with pytest.raises(ToolError, match="busy"):
        run(folder, "look_up", key="k")
    assert run(folder, "look_up", key="k") == "v"
    with pytest.raises(ToolError, match="no record"):
        run(folder, "look_up", key="other")


def run(folder: Workspace, name: str, **arguments: Any) -> str:
    tool = check_call(name, json.dumps(arguments)).tool
    assert tool is not None
    return tool.run(folder)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_task_is_not_solved_at_the_start(tmp_path: Path, task: Any) -> None:
    folder = Workspace(tmp_path, task.records)
    for path, content in task.files.items():
        folder.write(path, content)
    assert task.check(folder)
    for output in PERFECT[task.id]:
        for block in parse(output, tool_parser="hermes", reasoning_parser="qwen3").blocks:
            if block.type == "tool_call":
                judged = check_call(block.name, block.arguments)
                assert judged.tool is not None, judged.problem
                with suppress(ToolError):  # required by two of the tasks
                    judged.tool.run(folder)
    assert task.check(folder) is None


def test_task_names_are_unique() -> None:
    assert len({task.id for task in TASKS}) == len(TASKS) == 8
    assert set(PERFECT) == {task.id for task in TASKS}


def test_documentation_lists_the_tasks() -> None:
    page = (Path(__file__).parents[4] / "docs" / "eval.md").read_text()
    assert all(f"| `{task.id}` | {task.title} |" in page for task in TASKS)
