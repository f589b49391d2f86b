"""The output of `dovetail inspect`."""

import json
from pathlib import Path

import pytest
from real_models import TOKENIZERS
from typer.testing import CliRunner

from dovetail.cli.main import build_app

run = CliRunner()


def _model(name: str) -> str:
    path = TOKENIZERS / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand: make tokenizers")
    return str(path)


@pytest.mark.parametrize("name", ["qwen3", "smollm2/smollm2.gguf"])
def test_inspect_prints_a_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    result = run.invoke(build_app(), ["inspect", _model(name)])
    assert result.exit_code == 0, result.output
    for row in ("tokenizer", "template", "context", "<|im_end|>", "reasoning", "hermes", "passed"):
        assert row in result.output


def test_inspect_prints_json() -> None:
    result = run.invoke(build_app(), ["inspect", _model("qwen3"), "--json"])
    report = json.loads(result.output)
    assert report["tool_parser"] == "hermes"
    assert report["facts"]["reasoning_fields"] == ["reasoning_content"]
    assert report["facts"].keys() >= {
        "text_beside_thought",
        "opens_thought",
    }  # scripts rely on these keys
    assert report["facts"]["thinking_switches"]["off"] == {"enable_thinking": False}
    assert report["self_test"]["ok"] is True
    assert report["stops"]["ids"] == [151643, 151645]


def test_mismatched_parser_is_shown() -> None:
    result = run.invoke(build_app(), ["inspect", _model("qwen3"), "--tool-call-parser", "mistral"])
    assert result.exit_code == 0
    assert "FAILED" in result.output
    assert "lost call" in result.output


def test_custom_template_is_used(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    arguments = ["inspect", _model("qwen3"), "--custom-jinja-template", str(path), "--json"]
    report = json.loads(run.invoke(build_app(), arguments).output)
    assert report["template"]["source"] == str(path)
    assert report["facts"]["renders_tools"] is False


def test_invalid_path_is_reported_in_one_line(tmp_path: Path) -> None:
    result = run.invoke(build_app(), ["inspect", str(tmp_path / "nothing")])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "no such file or folder" in result.stderr


def test_help_describes_the_command() -> None:
    result = run.invoke(build_app(), ["inspect", "--help"])
    assert result.exit_code == 0
    for word in ("GGUF", "--json", "--tool-call-parser", "--reasoning-parser", "--custom-jinja"):
        assert word in result.output
    assert "inspect" in run.invoke(build_app(), ["--help"]).output
