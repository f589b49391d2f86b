"""Commands that need no server: their output, and their one-line errors."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from server_process import WEIGHTS, qwen_folder
from typer.testing import CliRunner

from dovetail.cli.main import build_app
from dovetail.models.weights import BUILT_IN_MODELS

RAW = "<think>\nHm.\n</think>\n\nLook.\n\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
BODIES: dict[str, Any] = {
    "messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi <|im_end|> é"}]},
    "chat": {"messages": [{"role": "user", "content": "Hi <|im_end|> é"}]},
    "responses": {"input": "Hi <|im_end|> é"},
}
PROMPT = "<|im_start|>user\nHi <|im_end|> é<|im_end|>\n<|im_start|>assistant\n"
COMMANDS = ["serve", "config", "chat", "demo", "inspect", "render", "parse", "tokenize"]
COMMANDS += ["models", "engine"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, requests, and invalid files."""
    place = tmp_path_factory.mktemp("cli")
    qwen_folder(place / "qwen")
    for api, body in BODIES.items():
        (place / f"{api}.json").write_text(json.dumps({"model": "m", **body}))
    (place / "raw.txt").write_text(RAW + CALL)
    (place / "broken.json").write_text("{")
    (place / "binary.gguf").write_bytes(bytes(range(128, 256)))
    (place / "empty").mkdir()
    return place


@pytest.fixture(autouse=True)
def _inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("DOVETAIL_HOME", str(place / "home"))


def run(*arguments: str, given: str | None = None) -> Any:
    return CliRunner().invoke(build_app(), list(arguments), input=given)


def printed(*arguments: str, given: str | None = None) -> str:
    """Run a command that must succeed, and return its output."""
    ran = run(*arguments, given=given)
    assert ran.exit_code == 0, ran.output
    return str(ran.stdout)


def test_help_names_every_command() -> None:
    shown = printed("--help")
    assert all(f"\n  {command} " in shown for command in COMMANDS)
    assert run().exit_code == 2  # without a command: print help and exit with an error


def test_version_is_printed() -> None:
    assert printed("--version") == f"dovetail {version('dovetail')}\n"


def test_help_shows_types_and_defaults_of_flags() -> None:
    shown = " ".join(printed("serve", "--help").split())
    assert "--log-format logfmt|json Format of log lines. (default: logfmt)" in shown
    assert "stored response is deleted. (default: 2592000)" in shown
    assert "Serve the Anthropic Messages API. (default: on)" in shown
    assert "(default: None)" not in shown


@pytest.mark.parametrize(
    "api",
    [pytest.param(api, marks=() if api == "chat" else pytest.mark.long) for api in BODIES],
)
def test_render_shows_the_prompt(api: str) -> None:
    ran = run("render", "qwen", f"{api}.json", "--api", api)
    assert ran.exit_code == 0
    assert ran.stdout.rstrip("\n") == PROMPT.rstrip("\n")
    assert "15 tokens, 0 of them from the ledger (cold)" in ran.stderr
    rendered = json.loads(printed("render", "qwen", f"{api}.json", "--api", api, "--json"))
    assert rendered["text"] == PROMPT
    assert len(rendered["ids"]) == 15
    assert rendered["ids"].count(151645) == 1  # spelled out by the user, so not a control token
    ids = printed("render", "qwen", f"{api}.json", "--api", api, "--ids")
    assert " ".join(map(str, rendered["ids"])) in ids


def test_parse_selects_parsers_by_name_and_by_model() -> None:
    for arguments in (
        ["raw.txt", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"],
        ["raw.txt", "--tool-call-parser", "Qwen/Qwen3-8B"],
        ["raw.txt", "--tool-call-parser", "Qwen/Qwen3-8B", "--chunk", "3"],
    ):
        blocks = [json.loads(line) for line in printed("parse", *arguments).splitlines()]
        assert [block["type"] for block in blocks] == ["reasoning", "text", "tool_call"]
        assert json.loads(blocks[2]["arguments"]) == {"a": 1}
    given = printed("parse", "--tool-call-parser", "hermes", given=CALL)
    assert json.loads(given)["name"] == "f"
    events = printed("parse", "raw.txt", "--tool-call-parser", "Qwen/Qwen3-8B", "--events")
    kinds = [json.loads(line)["type"] for line in events.splitlines()]
    assert kinds.count("call_open") == kinds.count("call_close") == 1


@pytest.mark.long
def test_tokenize_prints_ids_and_texts() -> None:
    assert json.loads(printed("tokenize", "qwen", "a<|im_end|>", "--json")) == [64, 151645]
    assert json.loads(printed("tokenize", "qwen", "--json", given="a<|im_end|>")) == [64, 151645]
    plain = json.loads(printed("tokenize", "qwen", "a<|im_end|>", "--json", "--plain"))
    assert 151645 not in plain
    assert "151645  '<|im_end|>'  control" in printed("tokenize", "qwen", "a<|im_end|>")


def test_models_shows_which_are_downloaded(place: Path) -> None:
    weights = BUILT_IN_MODELS["smollm2"]
    found, agent = json.loads(printed("models", "--json"))
    assert agent["name"] == "smollm2-agent"
    assert (found["name"], found["licence"]) == ("smollm2", weights.license)
    assert (found["context"], found["fetched"]) == (weights.context_length, False)
    models_dir = place / "elsewhere" / "models"
    models_dir.mkdir(parents=True)
    with (models_dir / "smollm2.gguf").open("wb") as file:
        file.truncate(weights.size_bytes)
    listed = json.loads(printed("models", "--json", "--data-dir", "elsewhere"))
    assert [row["fetched"] for row in listed] == [True, True]
    assert "smollm2" in printed("models")


def test_models_lists_parsers_by_family() -> None:
    by_name = {row["family"]: row for row in json.loads(printed("models", "--families", "--json"))}
    assert "qwen3_coder" in {name for row in by_name.values() for name in row["tool_parsers"]}
    assert by_name["hermes"]["tool_parsers"][0] == "hermes"
    assert "hermes" in printed("models", "--families")


def test_built_in_name_uses_the_template_of_serve(place: Path) -> None:
    """The template in the weights file would add a system text."""
    if not WEIGHTS.exists():
        pytest.skip("no weights: tools/fetch_tokenizers.py smollm2 fetches them")
    models_dir = place / "home" / "models"
    models_dir.mkdir(parents=True)
    (models_dir / "smollm2.gguf").symlink_to(WEIGHTS)
    assert json.loads(printed("render", "smollm2", "chat.json", "--api", "chat", "--json"))[
        "text"
    ] == (PROMPT)
    rendered = printed("render", "smollm2-agent", "chat.json", "--api", "chat", "--json")
    assert json.loads(rendered)["text"] == PROMPT
    assert json.loads(printed("inspect", "smollm2", "--json"))["self_test"]["ok"]
    assert printed("tokenize", "smollm2", "a", "--json") == "[81]\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("inspect nothing", "nothing"),
        ("inspect empty", "no tokenizer in empty"),
        ("inspect binary.gguf", "not a GGUF file"),
        ("inspect qwen --tool-call-parser nope", "unknown tool parser 'nope'"),
        ("inspect qwen --custom-jinja-template nofile", "nofile cannot be read"),
        ("render nothing chat.json", "nothing"),
        ("render qwen nofile.json", "nofile.json"),
        ("render qwen empty", "empty"),
        ("render qwen broken.json", "not valid JSON"),
        ("render qwen responses.json --api chat", "messages"),
        ("render qwen messages.json --data-dir nowhere", "nowhere has no turns.sqlite"),
        ("render qwen messages.json --reasoning-parser nope", "unknown reasoning parser"),
        ("parse nofile", "nofile"),
        ("parse empty", "empty"),
        ("parse binary.gguf", "binary.gguf"),
        ("tokenize nothing text", "nothing"),
        ("tokenize binary.gguf text", "not a GGUF file"),
    ],
)
def test_errors_are_reported_in_one_line(arguments: str, expected: str) -> None:
    ran = run(*arguments.split())
    assert ran.exit_code == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith(f"dovetail {arguments.split()[0]}: ")
    assert expected in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert isinstance(ran.exception, SystemExit)  # not another exception


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("nope", "No such command 'nope'"),
        ("inspect", "Missing argument"),
        ("inspect qwen --nope", "No such option: --nope"),
        ("render qwen chat.json --api nope", "'messages', 'responses', 'chat'"),
        ("parse raw.txt --tool-call-parser nope", "unknown tool parser 'nope'"),
        ("parse raw.txt --chunk -1", "--chunk"),
        ("models --nope", "No such option: --nope"),
        ("engine nope", "No such command 'nope'"),
        ("demo extra", "unexpected extra argument"),
        ("config --http-port abc", "--http-port"),
        ("serve --max-model-len 8192", "No such option: --max-model-len: use --context-length"),
        ("serve --model qwen", "No such option: --model: use the argument MODEL"),
        ("launch claude --max-model-len 8192", "use --context-length"),
        ("launch claude -p hello", "`dovetail launch HARNESS -- -p`"),
        ("launch claude --continue", "`dovetail launch HARNESS -- --continue`"),
        ("config --log-level loud", "'debug', 'info', 'warning', 'error'"),
        ("config --config nofile.toml", "nofile.toml"),
    ],
)
def test_usage_errors_exit_with_2(arguments: str, expected: str) -> None:
    ran = run(*arguments.split())
    assert ran.exit_code == 2
    assert expected in ran.stderr
    assert isinstance(ran.exception, SystemExit)


def test_failed_commands_create_no_files(place: Path) -> None:
    run("render", "qwen", "messages.json", "--data-dir", "nowhere")
    run("render", "qwen", "messages.json", "--data-dir", "empty")
    assert not (place / "nowhere").exists()
    assert not list((place / "empty").iterdir())
