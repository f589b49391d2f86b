"""Settings: three sources, their precedence, and errors that name the source."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dovetail.cli.main import build_app
from dovetail.settings.config import Config
from dovetail.settings.sources import ConfigError, dump_config, load_config

FILE = """
model = "from-file"
served-model-name = ["a/b", "c"]
log_prefix = true

[http]
http-port = 8201
max_body_bytes = 1000

[chat-template-kwargs]
enable_thinking = false
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str, name: str = "dovetail.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def test_defaults_apply_without_sources() -> None:
    settings = load_config({}, {})
    assert settings.config == Config()
    assert settings.origins == {}


def test_flags_override_environment_and_environment_overrides_file() -> None:
    written(FILE)
    environment = {"DOVETAIL_HTTP_PORT": "8301", "DOVETAIL_MODEL": "from-environment"}
    settings = load_config({"model": "from-flag", "threads": None}, environment)
    config = settings.config
    assert (config.model, config.http_port, config.max_body_bytes) == ("from-flag", 8301, 1000)
    assert config.served_model_name == ("a/b", "c")
    assert config.chat_template_kwargs == {"enable_thinking": False}
    assert config.log_prefix is True
    assert settings.origins["model"] == "flag"
    assert settings.origins["http_port"] == "environment"
    assert settings.origins["max_body_bytes"] == "dovetail.toml"
    assert "threads" not in settings.origins


def test_config_file_can_be_selected() -> None:
    written(FILE)
    other = written('model = "other"', "other.toml")
    assert load_config({}, {}, other).config.model == "other"
    assert load_config({}, {"DOVETAIL_CONFIG": "other.toml"}).config.model == "other"
    assert load_config(
        {}, {"DOVETAIL_CONFIG": "other.toml"}, Path("dovetail.toml")
    ).config.model == ("from-file")


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("SERVED_MODEL_NAME", "a/b, c", "served_model_name", ("a/b", "c")),
        ("LOG_PREFIX", "yes", "log_prefix", True),
        ("ENABLE_ANTHROPIC_API", "off", "enable_anthropic_api", False),
        ("CHAT_TEMPLATE_KWARGS", '{"a": 1}', "chat_template_kwargs", {"a": 1}),
        ("TEMPERATURE", "0.5", "temperature", 0.5),
        ("SCRIPT", "a.yaml", "script", Path("a.yaml")),
        ("SCRIPT", "~/a.yaml", "script", Path.home() / "a.yaml"),
        ("REPLAY", "exact", "replay", "exact"),
        ("THREADS", "", "threads", None),  # empty variables are ignored
    ],
)
def test_environment_values_are_converted(variable: str, text: str, name: str, value: Any) -> None:
    assert getattr(load_config({}, {f"DOVETAIL_{variable}": text}).config, name) == value


def test_reserved_variables_are_ignored() -> None:
    environment = {"DOVETAIL_HOME": "/x", "DOVETAIL_TEMPLATES": "/y", "PATH": "/bin"}
    assert load_config({}, environment).config == Config()


@pytest.mark.parametrize(
    ("flags", "environment", "file", "expected"),
    [
        ({}, {"DOVETAIL_NOPE": "1"}, None, "DOVETAIL_NOPE.*'nope'"),
        ({}, {"DOVETAIL_HTTP_PORT": "abc"}, None, "DOVETAIL_HTTP_PORT: must be an integer, got"),
        (
            {},
            {"DOVETAIL_LOG_PREFIX": "perhaps"},
            None,
            "DOVETAIL_LOG_PREFIX: must be true or false",
        ),
        ({"replay": "x"}, {}, None, "--replay: .*'auto', 'exact', 'client'.*'x'"),
        ({"default_thinking_mode": "on"}, {}, None, "'enabled', 'disabled'"),
        ({"chat_template_kwargs": "{"}, {}, None, "--chat-template-kwargs: .*JSON"),
        ({"chat_template_kwargs": "[1]"}, {}, None, "--chat-template-kwargs: "),
        ({}, {}, "nope = 1", r"dovetail\.toml.*'nope'"),
        ({}, {}, "[http]\nnope = 1", r"dovetail\.toml.*'nope'"),
        ({}, {}, "http-prot = 1", r"dovetail\.toml.*did you mean 'http_port'"),
        ({}, {}, "model = ", r"dovetail\.toml is not valid TOML"),
        ({}, {}, "http-port = 'abc'", r"http_port \(dovetail\.toml\): must be an integer"),
        ({}, {}, "served-model-name = 1", r"served_model_name.*dovetail\.toml"),
        ({"replicas": -3}, {}, None, "--replicas: .*>= 1, got -3"),
        ({}, {"DOVETAIL_TEMPERATURE": "nan"}, None, "DOVETAIL_TEMPERATURE: .*>= 0"),
        ({"engine_wait": float("inf")}, {}, None, "--engine-wait"),
        ({}, {}, "max-concurrent-requests = 0", "max_concurrent_requests.*>= 1"),
        ({"rate_limit_requests": 0}, {}, None, "--rate-limit-requests: .*>= 1"),
        ({}, {"DOVETAIL_RATE_LIMIT_TOKENS": "0"}, None, "DOVETAIL_RATE_LIMIT_TOKENS: .*>= 1"),
        ({}, {}, "script = 3", r"script.*dovetail\.toml"),
        ({"slots": 2}, {}, "[[models]]\nmodel = 'm'", r"--slots: .*\[\[models\]\]"),
        ({}, {"DOVETAIL_ENGINE": "vllm"}, "[[models]]\nmodel = 'm'", "DOVETAIL_ENGINE: "),
        ({}, {}, "models = 1", r"models.*dovetail\.toml.*\[\[models\]\]"),
        ({}, {}, "[[models]]\nhttp-port = 1", r"dovetail\.toml, model 1.*'http_port'"),
        ({}, {}, "[[models]]\nslots = 'many'", r"slots.*dovetail\.toml, model 1"),
        ({}, {"DOVETAIL_CONFIG": "nofile.toml"}, None, r"nofile\.toml"),
    ],
)
def test_invalid_setting_error_names_its_source(
    flags: dict[str, Any], environment: dict[str, str], file: str | None, expected: str
) -> None:
    if file is not None:
        written(file)
    with pytest.raises(ConfigError, match=expected):
        load_config(flags, environment)


def test_keys_are_masked() -> None:
    settings = load_config({"api_key": ["secret", "other"]}, {})
    assert dump_config(settings)["api_key"] == ["***", "***"]
    assert dump_config(settings, secrets=True)["api_key"] == ["secret", "other"]


def test_every_setting_is_a_flag_with_help() -> None:
    shown = CliRunner().invoke(build_app(), ["serve", "--help"], env={"COLUMNS": "300"}).output
    for one in fields(Config):
        if one.name == "models":  # tables are only supported in the file
            continue
        flag = "[MODEL]" if one.name == "model" else f"--{one.name.replace('_', '-')}"
        assert flag in shown
        assert one.metadata["help"]


def test_config_command_prints_values_and_sources() -> None:
    written(FILE)
    given = ["config", "some-model", "--threads", "2", "--api-key", "secret"]
    ran = CliRunner().invoke(
        build_app(), given, env={"DOVETAIL_HTTP_PORT": "8301", "COLUMNS": "200"}
    )
    assert ran.exit_code == 0
    rows = {row[0]: row[1:] for row in map(str.split, ran.output.splitlines())}
    assert rows["model"] == ['"some-model"', "flag"]
    assert rows["threads"] == ["2", "flag"]
    assert rows["http_port"] == ["8301", "environment"]
    assert rows["max_body_bytes"] == ["1000", "dovetail.toml"]
    assert rows["store"] == ['"sqlite"']
    assert "secret" not in ran.output


def test_passwords_in_urls_are_masked() -> None:
    settings = load_config({"store": "redis://me:secret@host/0"}, {})
    assert dump_config(settings)["store"] == "redis://me:***@host/0"
    assert dump_config(settings, secrets=True)["store"] == "redis://me:secret@host/0"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trace_keep", -1),
        ("trace_max_bytes", -1),
        ("responses_max_age", -1.0),
        ("responses_max_bytes", -1),
        ("resume_drop_thinking", -1.0),
        ("http_port", 70_000),
        ("workers", 100_000),
        ("price_prompt", 1e17),
    ],
)
def test_out_of_range_numbers_are_rejected(name: str, value: float) -> None:
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(ConfigError, match=rf"{flag}: must be [<>]=? \S+, got"):
        load_config({name: value}, {})


def test_empty_key_is_rejected() -> None:
    """The key is empty for `--api-key "$KEY"` with an unset variable."""
    with pytest.raises(ConfigError, match="--api-key: must not be empty"):
        load_config({"api_key": [""]}, {})


def test_values_are_not_truncated_without_a_terminal() -> None:
    path = "/srv/" + "deep/" * 40 + "trace.jsonl"
    shown = CliRunner().invoke(build_app(), ["config", "--trace-file", path])
    assert f'"{path}"' in shown.output


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        ({"recover": ["reasoning,loop"]}, {}),
        ({"recover": ["reasoning", "loop"]}, {}),
        ({}, {"DOVETAIL_RECOVER": "reasoning, loop"}),
    ],
)
def test_choices_are_separated_by_commas(
    flags: dict[str, Any], environment: dict[str, str]
) -> None:
    assert load_config(flags, environment).config.recover == ("reasoning", "loop")


def test_choices_of_a_model_table() -> None:
    written("[[models]]\nmodel = 'a'\nrecover = ['loop', 'empty']")
    assert load_config({}, {}).config.models[0]["recover"] == ("loop", "empty")


def test_an_unknown_choice_of_a_list_is_rejected() -> None:
    with pytest.raises(ConfigError, match="--recover: must be one of 'reasoning', 'empty', 'loop'"):
        load_config({"recover": ["reasoning,loops"]}, {})
