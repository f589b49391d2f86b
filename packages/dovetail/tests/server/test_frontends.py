"""Settings of frontends in Ray Serve, without Ray: `make test-ray` runs the frontends."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.engines.registry import EngineSetupError
from dovetail.server.frontends import FrontendOptions, read_options
from dovetail.settings.config import Config
from dovetail.settings.sources import ConfigError

EXAMPLE = Path(__file__).parents[4] / "examples" / "ray" / "dovetail.yaml"


def test_texts_are_read_as_variables_and_other_values_as_flags() -> None:
    options = read_options(
        {
            "engine": "vllm",
            "engine_url": "http://a:8000,http://b:8000",
            "drain_timeout": "20",
            "log_prefix": "true",
            "model_alias": ["claude-*=m", "gpt-*=m"],
            "max_body_bytes": 1000,
        }
    )
    assert options.config == Config(
        engine="vllm",
        engine_url=("http://a:8000", "http://b:8000"),
        drain_timeout=20.0,
        log_prefix=True,
        model_alias=("claude-*=m", "gpt-*=m"),
        max_body_bytes=1000,
    )


def test_settings_override_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dovetail.toml").write_text('engine = "sglang"\nworkers = 3\n')
    assert read_options({}) == FrontendOptions(Config(), 2, 1.0)  # the file is not read by chance
    config = read_options({"config": str(tmp_path / "dovetail.toml"), "workers": "1"}).config
    assert (config.engine, config.workers) == ("sglang", 1)


@pytest.mark.parametrize(
    "options", [{"engin": "vllm"}, {"engin": 1}, {"workers": "many"}, {"home": "x"}]
)
def test_unknown_names_and_values_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        read_options(options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": "2"}, "workers must be 1 with Ray Serve, got 2: set frontends"),
        ({"store": "memory"}, "store=memory cannot be combined with several frontends"),
        ({"frontends": "0"}, "frontends must be >= 1, got 0"),
        ({"frontends": "two"}, "frontends must be a number, got 'two'"),
        ({"frontends": "nan"}, "frontends must be a number, got 'nan'"),
        ({"frontends": "1.5"}, "frontends must be a whole number, got 1.5"),
        ({"num_cpus": None}, "num_cpus must be a number, got None"),
    ],
)
def test_settings_that_frontends_cannot_share(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineSetupError, match=message):
        read_options(arguments)
    assert read_options({"store": "memory", "frontends": "1"}).frontends == 1
    assert read_options({"store": "redis://redis:6379/0", "num_cpus": "0.5"}).num_cpus == 0.5


def test_settings_of_the_example_are_valid() -> None:
    (application,) = yaml.safe_load(EXAMPLE.read_text())["applications"]
    assert application["import_path"] == "dovetail.server.ray:build"
    options = read_options(application["args"])
    assert options.frontends == 2
    config = options.config
    assert len(config.engine_url) == 4
    assert config.store.startswith("redis://")
