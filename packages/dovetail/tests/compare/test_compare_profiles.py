"""Profiles: the keys, their short names, what is stored of them, and errors."""

from pathlib import Path

import pytest

from dovetail.compare.endpoints import _build_arguments
from dovetail.compare.profiles import build_profile, load_profile
from dovetail.compare.task_set import CompareError


def test_profile_of_a_running_endpoint() -> None:
    profile = load_profile("url=http://127.0.0.1:9/v1, alias=big")
    assert (profile.url, profile.alias) == ("http://127.0.0.1:9/v1", "big")


def test_profile_of_a_server_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        'engine = "vllm"\nengine-url = "http://127.0.0.1:9"\nledger = "off"\nretention = "all"\n'
        'dispatch = true\ntemplate = "t.jinja"\nmodel = "org/model"\nalias = "gpt-5.5"\n'
        'catalog = false\narguments = ["--x"]\n[environment]\nENABLE_TOOL_SEARCH = "true"\n'
    )
    profile = load_profile(str(path))
    config = profile.settings.config
    assert (config.engine, config.engine_url) == ("vllm", ("http://127.0.0.1:9",))
    assert (config.replay, config.reasoning_retention) == ("client", "all")
    assert config.enable_streaming_tool_dispatch
    assert config.custom_jinja_template == Path("t.jinja")
    assert (profile.catalog, profile.arguments) == (False, ("--x",))
    assert profile.environment == {"ENABLE_TOOL_SEARCH": "true"}
    arguments = _build_arguments(profile)
    assert arguments[0] == "org/model"
    assert arguments[-6:] == [
        *("--store", "memory", "--served-model-name", "gpt-5.5", "--http-port", "0")
    ]
    assert arguments[arguments.index("--replay") :][:2] == ["--replay", "client"]


def test_store_and_names_of_the_profile_are_used() -> None:
    profile = load_profile("model=m,store=sqlite,served_model_name=x,alias=x")
    arguments = _build_arguments(profile)
    assert "memory" not in arguments
    assert arguments.count("--served-model-name") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engin=vllm", "unknown key 'engin'; did you mean 'engine'?"),
        ("ledgr=off", "unknown key 'ledgr'; did you mean 'ledger'?"),
        ("model=m,http_port=80", "'http_port' cannot be set in a profile"),
        ("url=http://h,engine=vllm", "engine cannot be combined with url"),
        ("url=http://h,ledger=off", "ledger cannot be combined with url"),
        ("engine=vllm,engine_url=http://a,engine_url=http://b", "engine_url is set twice"),
        ("alias=x", "set url, or settings of a server"),
        ("nothing", "neither a TOML file nor a list of key=value"),
        ("missing.toml", "cannot read the profile missing.toml"),
        ("model=m,replay=never", "must be one of 'auto', 'exact', 'client', got 'never'"),
        ("model=m,ledger=maybe", "must be one of 'auto', 'exact', 'client', got 'maybe'"),
        ("model=m,max_requests=0", "max_requests must be >= 1, got 0"),
        ("url=http://h,api_key_env=NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE is not set"),
    ],
)
def test_invalid_profiles_are_reported(text: str, message: str) -> None:
    with pytest.raises(CompareError) as caught:
        load_profile(text)
    assert message in str(caught.value)


def test_invalid_toml_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("engine = ")
    with pytest.raises(CompareError, match="is not valid TOML"):
        load_profile(str(path))


def test_keys_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_KEY", "sk-secret")
    by_name = load_profile("url=http://h,api_key_env=LAB_KEY")
    assert by_name.key == "sk-secret"
    given = build_profile(
        {"model": "m", "engine_api_key": "sk-secret", "api_key": "sk-secret",
         "environment": {"LAB_TOKEN": "sk-secret", "DEBUG": "1"}},
        "test",
    )  # fmt: skip
    assert given.key == "sk-secret"
    for profile in (by_name, given):
        assert "sk-secret" not in str(profile.to_json())
        assert "sk-secret" not in repr(profile.to_json())
    assert given.to_json()["environment"]["DEBUG"] == "1"


def test_passwords_in_urls_are_not_stored() -> None:
    profile = build_profile(
        {"model": "m", "engine": "vllm", "engine_url": ["http://me:sk-secret@h:1"],
         "store": "redis://me:sk-secret@h:2"},
        "test",
    )  # fmt: skip
    assert "sk-secret" not in str(profile.to_json())
    assert "http://me:***@h:1" in str(profile.to_json())


def test_ledger_must_be_a_switch() -> None:
    with pytest.raises(CompareError):
        build_profile({"model": "m", "ledger": []}, "test")
