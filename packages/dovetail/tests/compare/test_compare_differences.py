"""The first difference between requests that should be equal."""

from pathlib import Path
from typing import Any

from dovetail.compare.differences import (
    SessionRequest,
    find_difference,
    name_scratch_folder,
    normalize,
)
from dovetail.compare.records import RequestDifference

OUTPUT = [["text", "hello"]]


def request(body: Any, output: Any = OUTPUT) -> SessionRequest:
    return SessionRequest(body, output)


def test_equal_requests_have_no_difference() -> None:
    assert find_difference([request({"x": [1]})], [request({"x": [1]})]) is None


def test_first_difference_is_found_with_its_path() -> None:
    a = request({"input": [{"text": "same"}, {"text": "a" * 100 + "left" + "b" * 300}]})
    b = request({"input": [{"text": "same"}, {"text": "a" * 100 + "right" + "b" * 300}]})
    found = find_difference([a], [b])
    assert found is not None
    assert (found.request, found.path) == (0, "input[1].text")
    assert found.a is not None
    assert found.b is not None
    assert found.a.startswith("…" + "a" * 40 + "left")
    assert found.b.startswith("…" + "a" * 40 + "right")
    assert found.a.endswith("…")


def test_missing_values_are_none() -> None:
    assert find_difference([request({"tools": [1, 2]})], [request({"tools": [1]})]) == (
        RequestDifference(0, "tools[1]", "2", None)
    )
    assert find_difference([request({})], [request({"text": {"verbosity": "low"}})]) == (
        RequestDifference(0, "text", None, '{"verbosity":"low"}')
    )


def test_later_requests_are_compared_while_the_outputs_are_equal() -> None:
    a = [request({"n": 1}), request({"n": 2}), request({"n": 3})]
    b = [request({"n": 1}), request({"n": 2}), request({"n": 4})]
    assert find_difference(a, b) == RequestDifference(2, "n", "3", "4")


def test_requests_after_different_outputs_are_not_compared() -> None:
    a = [request({"n": 1}, [["text", "x"]]), request({"n": 2})]
    b = [request({"n": 1}, [["text", "y"]]), request({"n": 3})]
    assert find_difference(a, b) is None


def test_what_is_random_is_replaced() -> None:
    def body(number: int, folder: str) -> dict[str, Any]:
        return {
            "model": f"model-{number}",
            "metadata": {"user_id": f"{number}"},
            "prompt_cache_key": f"{number}",
            "input": [
                {"id": f"msg_{number}", "text": f"In {folder}/work on 2026-11-{number} "
                 f"19:0{number % 10}:11Z: 0d4f2b6a-11{number}-4c3e-9d2b-0a1b2c3d4e5f"},
                {"type": "function_call", "call_id": f"call_{number}", "name": "ls"},
                {"output": f"Chunk ID: {number}ab\nWall time: 0.{number} seconds"},
                {"output": f"Process running with session ID {number}"},
                {"output": f"saved to: {folder}/tool-results/b{number}yw.txt"},
                {"output": f"Full output saved to: {folder}/opencode/tool-output/tool_{number}pz"},
                {"output": f"Full output: {folder}/pi-bash-{number}f.log]"},
            ],
        }  # fmt: skip

    one = normalize(body(17, "/tmp/x1"), {"/tmp/x1": "<scratch>"})
    other = normalize(body(18, "/tmp/y22"), {"/tmp/y22": "<scratch>"})
    assert one == other
    assert one["input"][1] == {"type": "function_call", "name": "ls"}


def test_model_inside_of_the_request_is_compared() -> None:
    one, other = ({"text": {"model": name}} for name in ("a", "b"))
    assert normalize(one, {}) != normalize(other, {})


def test_scratch_folder_is_replaced_in_both_forms_in_which_clients_write_it() -> None:
    """Claude Code names the folder of a project after its path, in the system prompt."""

    def text(name: str) -> Any:
        folder = Path("/tmp") / name
        project = f"/home/.claude/projects/-tmp-{name.replace('_', '-')}-work/memory"
        return normalize(f"In {folder}/work: {folder}{project}", name_scratch_folder(folder))

    assert text("compare-ab_1") == text("compare-xyz2")
    assert text("compare-ab_1").startswith("In <scratch>/work: <scratch>/home/.claude")
