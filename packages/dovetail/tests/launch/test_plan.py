"""The launch plan of each harness, and the same plan as shell commands."""

import json
import os
import subprocess
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from launch_fixture import CATALOG, KEY, MODEL, FakeHarness, launch_request, target

from dovetail.launch.client_version import ClientNeeds, parse_version, select_needs
from dovetail.launch.harnesses import HARNESSES, get_harness
from dovetail.launch.plan import API_KEY_VARIABLE, LaunchError, LaunchPlan, LaunchRequest
from dovetail.launch.private_files import (
    open_private_file,
    remove_private_files,
    write_private_files,
)
from dovetail.launch.runner import (
    SHELL_KEY_VARIABLE,
    build_environment,
    build_proxy_bypass,
    to_shell_lines,
)

WAYS = [(name, api) for name, one in HARNESSES.items() for api in one.apis]


def made(name: str, folder: Path, api: str | None = None, key: str | None = None) -> LaunchPlan:
    known = HARNESSES[name]
    return known.prepare_plan(launch_request(folder, api or known.apis[0], known.executable, key))


@pytest.mark.parametrize(("name", "api"), WAYS)
def test_user_arguments_are_last_and_unchanged(name: str, api: str, tmp_path: Path) -> None:
    plan = made(name, tmp_path, api)
    assert plan.command[0] == HARNESSES[name].executable
    assert plan.command[-2:] == ("-x", "a b")


@pytest.mark.parametrize(("name", "api"), WAYS)
def test_keys_are_not_on_the_command_line(name: str, api: str, tmp_path: Path) -> None:
    """Nor are they in a file, except in Claude Code's settings, which override its environment."""
    plan = made(name, tmp_path, api, KEY)
    assert KEY in plan.environment.values()
    assert not [part for part in plan.command if KEY in part]
    for path, text in plan.files.items():
        assert path.is_relative_to(tmp_path)
        assert (name == "claude") == (json.dumps(KEY) in text)


@pytest.mark.parametrize(("name", "api"), WAYS)
def test_printed_lines_are_equivalent_to_launch(name: str, api: str, tmp_path: Path) -> None:
    """A shell that runs them passes the same arguments, variables and files to the harness."""
    harness = FakeHarness(tmp_path, HARNESSES[name].executable)
    plan = made(name, tmp_path / "a place", api, KEY)
    lines = "\n".join(to_shell_lines(plan, KEY))
    assert KEY not in lines
    inherited = {"PATH": f"{harness.bin}{os.pathsep}{os.environ['PATH']}", "OTHER": "kept"}
    leftovers = dict.fromkeys(plan.unset_variables, "of another place")
    ran = subprocess.run(
        ["bash", "-c", lines],
        env={**inherited, **leftovers, SHELL_KEY_VARIABLE: KEY},
        timeout=30,
        check=False,
    )
    assert ran.returncode == 7
    invocation = harness.invocation
    assert invocation["arguments"] == list(plan.command[1:])
    expected = build_environment(plan, {**inherited, **leftovers})
    assert expected.items() <= invocation["environment"].items()
    assert not set(plan.unset_variables) & set(invocation["environment"])
    for path, text in plan.files.items():
        assert path.read_text() == text
        assert [one.stat().st_mode & 0o077 for one in (path, path.parent)] == [0, 0]


def test_claude_code_gets_all_model_roles_and_the_context_length(tmp_path: Path) -> None:
    known = HARNESSES["claude"]
    request = LaunchRequest(target(65_536), "messages", (), "claude", tmp_path)
    set_to = known.build_plan(request).environment
    assert set_to["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8000"
    assert set_to["ANTHROPIC_AUTH_TOKEN"] == "none"
    roles = [name for name, value in set_to.items() if value == MODEL]
    assert {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"} <= set(roles)
    assert {"CLAUDE_CODE_SUBAGENT_MODEL", "ANTHROPIC_CUSTOM_MODEL_OPTION"} <= set(roles)
    assert set_to["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "65536"
    assert set_to["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "65536"
    assert set_to["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "8192"
    assert "ANTHROPIC_API_KEY" in known.build_plan(request).unset_variables


def test_codex_uses_websockets_on_request(tmp_path: Path) -> None:
    for api, has_websockets in (("responses", False), ("websocket", True)):
        (provider,) = (part for part in made("codex", tmp_path, api).command if "base_url" in part)
        assert ("supports_websockets=true" in provider) == has_websockets


def test_key_with_json_escapes_is_not_shown(tmp_path: Path) -> None:
    plan = made("claude", tmp_path, key='a"b')
    lines = "\n".join(to_shell_lines(plan, 'a"b'))
    assert 'a"b' not in lines
    assert json.dumps('a"b')[1:-1] not in lines


def test_claude_code_settings_repeat_the_environment(tmp_path: Path) -> None:
    """A user's settings.json would override the environment."""
    plan = made("claude", tmp_path, key=KEY)
    flag, path = plan.command[1:3]
    assert flag == "--settings"
    settings = json.loads(plan.files[Path(path)])
    assert settings["env"] == {**dict.fromkeys(plan.unset_variables, ""), **plan.environment}
    assert settings["apiKeyHelper"] == ""  # its key would be sent in addition to ours


@pytest.mark.parametrize("needs", HARNESSES["claude"].needs)
def test_claude_code_compacts_before_the_context_is_full(needs: ClientNeeds) -> None:
    """The limit is above its own prompt; otherwise it would compact all the time."""
    for window in (needs.min_context_tokens, 131_072, 1_000_000):
        reserved_tokens = min(target(window).max_output_tokens, 20_000)  # Claude Code's own limit
        margin_tokens = 13_000  # subtracted by Claude Code in addition
        assert window - reserved_tokens - margin_tokens > needs.prompt_tokens + 8_000


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("2.1.325 (Claude Code)\n", (2, 1, 325)),
        ("codex-cli 0.166.0\n", (0, 166, 0)),
        ("OpenClaw 2026.9.6 (eb377ac)", (2026, 9, 6)),
        ("unknown", None),
    ],
)
def test_version_of_a_client(printed: str, version: tuple[int, ...] | None) -> None:
    assert parse_version(printed) == version


@pytest.mark.parametrize(
    ("version", "tokens"),
    [
        ((2, 0, 1), 49_152),
        ((2, 1, 197), 49_152),
        ((2, 1, 324), 49_152),
        ((2, 1, 325), 40_960),
        ((3, 0), 40_960),
        (None, 49_152),
    ],
)
def test_claude_code_needs_what_its_version_needs(
    version: tuple[int, ...] | None, tokens: int
) -> None:
    assert select_needs(HARNESSES["claude"].needs, version).min_context_tokens == tokens


@pytest.mark.parametrize(
    ("name", "api"), [way for way in WAYS if HARNESSES[way[0]].has_small_model]
)
def test_small_model_is_for_side_requests(name: str, api: str, tmp_path: Path) -> None:
    small = replace(target(), small_model="small")
    request = LaunchRequest(small, api, (), name, tmp_path)
    plan = HARNESSES[name].build_plan(request)
    if name == "claude":
        with_small = {key for key, value in plan.environment.items() if value == "small"}
        assert with_small == {
            "ANTHROPIC_DEFAULT_HAIKU_MODEL",
            "ANTHROPIC_SMALL_FAST_MODEL",
            "CLAUDE_CODE_AUTO_MODE_MODEL",
            "CLAUDE_CODE_BG_CLASSIFIER_MODEL",
        }
        assert plan.environment["ANTHROPIC_MODEL"] == MODEL
    elif name == "codex":
        (catalog,) = map(json.loads, plan.files.values())
        reviewers = [entry["auto_review_model_override"] for entry in catalog["models"]]
        assert reviewers == ["small"] * len(CATALOG["models"])
    else:
        settings = json.loads(plan.environment["OPENCODE_CONFIG_CONTENT"])
        assert (settings["model"], settings["small_model"]) == (
            f"dovetail/{MODEL}",
            "dovetail/small",
        )
        assert list(settings["provider"]["dovetail"]["models"]) == [MODEL, "small"]


def test_codex_settings_are_toml(tmp_path: Path) -> None:
    plan = made("codex", tmp_path, key=KEY)
    given = [after for flag, after in pairwise(plan.command) if flag == "-c"]
    settings = tomllib.loads("\n".join(given))
    assert settings["model"] == MODEL
    assert settings["model_provider"] == "dovetail"
    assert settings["model_providers"]["dovetail"] == {
        "name": "Dovetail",
        "base_url": "http://127.0.0.1:8000/v1",
        "wire_api": "responses",
        "env_key": API_KEY_VARIABLE,
    }
    assert json.loads(plan.files[Path(settings["model_catalog_json"])]) == CATALOG
    # A config.toml may have limits for another model, which override a catalog.
    assert settings["model_context_window"] == 200_000
    assert settings["model_auto_compact_token_limit"] == 180_000


@pytest.mark.parametrize(
    ("api", "sdk"), [("chat", "@ai-sdk/openai-compatible"), ("responses", "@ai-sdk/openai")]
)
def test_opencode_gets_a_provider_without_a_file(api: str, sdk: str, tmp_path: Path) -> None:
    plan = made("opencode", tmp_path, api)
    settings = json.loads(plan.environment["OPENCODE_CONFIG_CONTENT"])
    assert not plan.files
    assert settings["model"] == settings["small_model"] == f"dovetail/{MODEL}"
    provider = settings["provider"]["dovetail"]
    assert provider["npm"] == sdk
    assert provider["options"]["apiKey"] == f"{{env:{API_KEY_VARIABLE}}}"
    assert provider["models"][MODEL]["limit"] == {"context": 200_000, "output": 25_000}
    assert (settings["enabled_providers"], settings["disabled_providers"]) == (["dovetail"], [])


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ((), ("-m", "NAME")),
        (("-c",), ("-m", "NAME", "-c")),
        (("run", "-c", "x"), ("run", "-m", "NAME", "-c", "x")),
        (("run", "-m", "a/b", "x"), ("run", "-m", "a/b", "x")),
        (("--model=a/b",), ("--model=a/b",)),
        (("models", "dovetail"), ("models", "dovetail")),
    ],
)
def test_opencode_gets_the_model_flag_where_it_is_accepted(
    given: tuple[str, ...], run: tuple[str, ...], tmp_path: Path
) -> None:
    request = LaunchRequest(target(), "chat", given, "opencode", tmp_path)
    named = tuple(f"dovetail/{MODEL}" if part == "NAME" else part for part in run)
    assert HARNESSES["opencode"].build_plan(request).command == ("opencode", *named)


@pytest.mark.parametrize(
    ("api", "named", "url"),
    [
        ("chat", "openai-completions", "http://127.0.0.1:8000/v1"),
        ("responses", "openai-responses", "http://127.0.0.1:8000/v1"),
        ("messages", "anthropic-messages", "http://127.0.0.1:8000"),
    ],
)
@pytest.mark.parametrize("name", ["pi", "openclaw"])
def test_pi_and_openclaw_get_the_requested_api(
    name: str, api: str, named: str, url: str, tmp_path: Path
) -> None:
    (text,) = made(name, tmp_path, api).files.values()
    assert f'"api": "{named}"' in text
    assert f'"baseUrl": "{url}"' in text
    assert '"contextWindow": 200000' in text
    assert API_KEY_VARIABLE in text


def test_openclaw_chats_in_the_terminal_by_default(tmp_path: Path) -> None:
    request = LaunchRequest(target(), "responses", (), "openclaw", tmp_path)
    assert HARNESSES["openclaw"].build_plan(request).command == ("openclaw", "chat")


def test_servers_have_separate_harness_files(tmp_path: Path) -> None:
    here = launch_request(tmp_path, "messages", "claude")
    again = launch_request(tmp_path, "messages", "claude", KEY)
    elsewhere = replace(here, target=replace(here.target, address="http://127.0.0.1:9000"))
    other = replace(here, target=replace(here.target, model="other"))
    assert here.run_dir == again.run_dir
    assert len({here.run_dir, elsewhere.run_dir, other.run_dir}) == 3


@pytest.mark.parametrize(
    ("inherited", "excepted"),
    [
        ({"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "intern"}, "intern,127.0.0.1"),
        ({"NO_PROXY": ".corp"}, ".corp,127.0.0.1"),
        ({}, "127.0.0.1"),  # a harness may configure a proxy in its own file
    ],
)
@pytest.mark.parametrize("name", HARNESSES)
def test_proxy_is_bypassed_for_the_server(
    name: str, inherited: dict[str, str], excepted: str, tmp_path: Path
) -> None:
    past = build_proxy_bypass("http://127.0.0.1:8000", inherited)
    known = HARNESSES[name]
    request = replace(launch_request(tmp_path, known.apis[0], known.executable), proxy_bypass=past)
    plan = known.prepare_plan(request)
    environment = build_environment(plan, inherited)
    assert environment["no_proxy"] == environment["NO_PROXY"] == excepted
    assert f"export NO_PROXY={excepted}" in list(to_shell_lines(plan, None))
    if name == "claude":
        (settings,) = plan.files.values()
        assert json.loads(settings)["env"]["NO_PROXY"] == excepted


def test_files_are_private_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "launch" / "place" / "settings.json"
    write_private_files({path: "secret"})
    places = (path, path.parent, path.parent.parent)
    assert [one.stat().st_mode & 0o777 for one in places] == [0o600, 0o700, 0o700]
    assert [one.name for one in path.parent.iterdir()] == ["settings.json"]
    remove_private_files([path])
    assert not path.parent.exists()


def test_concurrent_runs_have_separate_logs(tmp_path: Path) -> None:
    with open_private_file(tmp_path / "server.log") as first:
        first.write("first, ")
        with open_private_file(tmp_path / "server.log") as second:
            second.write("second")
        first.write("and more")
        first.seek(0)
        assert first.read() == "first, and more"
    assert (tmp_path / "server.log").read_text() == "second"


def test_unknown_harness_error_lists_the_known_ones() -> None:
    with pytest.raises(LaunchError, match=r"'cursor'.*claude \(Claude Code\).*pi \(Pi\)"):
        get_harness("cursor")
