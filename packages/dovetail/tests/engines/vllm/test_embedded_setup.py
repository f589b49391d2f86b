"""The embedded vLLM without vLLM: its options, its log, and the models that it serves.

`test_embedded.py` runs the real one; `../steps` runs the same path with a scripted child.
"""

import asyncio
import logging
import sys
from pathlib import Path

import pytest
from server_process import qwen_folder

from dovetail.engines.registry import EngineSetup, EngineSetupError, runs_locally
from dovetail.engines.vllm import process
from dovetail.engines.vllm.embedded import create_embedded
from dovetail.engines.vllm.process import (
    EmbeddedVllmOptions,
    LoadProgress,
    VllmProcess,
    model_reference,
    parse_adapters,
    split_options,
)
from dovetail.pipeline.registry import TokenModel
from dovetail.server.build import build_service
from dovetail.settings.config import Config
from dovetail.settings.sources import ConfigError, load_config
from dovetail_model import EngineUnavailable
from dovetail_tokenizers import ByteTokenizer

PREFIX = "(EngineCore pid=63) INFO 11-16 17:50:42 [core.py:153] "
ERROR_PREFIX = "(VllmWorker-0 pid=80) ERROR 11-16 17:53:22 [multiproc_executor.py:953] "


def test_an_engine_without_an_address_runs_on_this_machine() -> None:
    assert runs_locally("vllm", False)
    assert not runs_locally("vllm", True)
    assert not runs_locally("sglang", False)
    assert runs_locally("transformers", False)


def test_options_that_are_not_ours_are_arguments_of_vllm() -> None:
    options, arguments = split_options(
        {"python": "p", "logs": "true", "max_model_len": "99", "kv_events_config": '{"a": 1}'}
    )
    assert (options.python, options.logs) == ("p", True)
    assert arguments == {"max_model_len": "99", "kv_events_config": '{"a": 1}'}


def test_the_model_is_not_an_option() -> None:
    """vLLM would run another model than the one whose prompts are tokenized."""
    with pytest.raises(EngineSetupError, match="pass it as MODEL"):
        split_options({"model": "other"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=/x,b=/y=z", {"a": "/x", "b": "/y=z"}),
        ('{"a": "/x"}', {"a": "/x"}),
    ],
)
def test_adapters(text: str, expected: dict[str, str]) -> None:
    assert parse_adapters(text) == expected


@pytest.mark.parametrize("text", ["a", "{", '{"a": 1}', "a=", "=/x", '{"": "/x"}'])
def test_invalid_adapters_are_reported(text: str) -> None:
    with pytest.raises(EngineSetupError, match="lora_modules must be NAME=FOLDER"):
        parse_adapters(text)


def test_a_hub_model_without_weights_is_downloaded_by_vllm(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    assert model_reference(snapshot) == "org/name"
    (snapshot / "model.safetensors").touch()
    assert model_reference(snapshot) == str(snapshot)


def test_a_gguf_file_is_rejected_before_vllm_is_started(tmp_path: Path) -> None:
    """The default model is one: `dovetail serve --engine vllm` has neither a model nor a URL."""
    file = tmp_path / "smollm2.gguf"
    file.touch()
    with pytest.raises(EngineSetupError, match=r"or --engine-url: smollm2\.gguf is a GGUF file"):
        create_embedded(EngineSetup(ByteTokenizer(()), file))


@pytest.mark.parametrize(
    ("files", "complete"),
    [
        (["model-00001-of-00002.safetensors"], False),
        (["model-00001-of-00002.safetensors", "training_args.bin"], False),
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], True),
        (["a-00001-of-00002.bin", "model-00001-of-00001.safetensors"], True),
    ],
)
def test_an_interrupted_download_is_continued(
    tmp_path: Path, files: list[str], complete: bool
) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in files:
        (snapshot / name).touch()
    assert model_reference(snapshot) == (str(snapshot) if complete else "org/name")


def test_the_progress_of_a_download_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    blobs = tmp_path / "models--org--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "tokenizer").write_bytes(b"x" * 5_000_000)  # was there before
    progress = LoadProgress("org/name")
    progress.log()
    (blobs / "weights.incomplete").write_bytes(b"x" * 3_000_000)
    progress.log()
    (blobs / "weights.incomplete").rename(blobs / "weights")
    (tmp_path / "other" / "models--org--name" / "blobs").mkdir(parents=True)
    other = LoadProgress("org/name", str(tmp_path / "other"))
    (tmp_path / "other" / "models--org--name" / "blobs" / "weights").write_bytes(b"x" * 1_000_000)
    progress.log()
    other.log()
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert [one.get("downloaded_mb") for one in fields] == [None, 3, 3, 1]


def test_the_stages_of_loading_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    progress = LoadProgress("m")
    progress.add_line(PREFIX + "Initializing a V1 LLM engine (v0.32.0) with config: model='m'")
    lines = ["world_size=1 rank=0", "Starting to load model m...", "init engine took 3 s"]
    for line in (*lines, "Loading weights took 1 s"):  # the last one is of a request
        progress.add_line(PREFIX + line)
    stages = [record.__dict__["fields"]["stage"] for record in caplog.records]
    assert stages == ["Initializing a V1 LLM engine (v0.32.0)", *lines[1:]]
    assert progress.error == ""


def test_a_long_stage_is_logged_repeatedly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(process, "PROGRESS_INTERVAL_SECONDS", 0.05)
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nsleep 1\n")
    program.chmod(0o755)
    engine = create_embedded(
        EngineSetup(ByteTokenizer(()), tmp_path, options={"python": str(program)})
    )
    with pytest.raises(EngineUnavailable, match="exited with status 0"):
        asyncio.run(engine.start())
    assert sum(record.message == "engine_loading" for record in caplog.records) > 2


def test_the_reason_of_a_failure_is_the_first_specific_error() -> None:
    progress = LoadProgress("m")
    progress.add_line(ERROR_PREFIX + "    raise ValueError(")
    progress.add_line(ERROR_PREFIX + "ValueError: not enough memory")
    progress.add_line(PREFIX + "Exception: WorkerProc initialization failed due to an exception")
    progress.add_line("RuntimeError: Engine core initialization failed. See root cause above.")
    assert progress.error == "ValueError: not enough memory"


def test_harmless_messages_are_no_reason() -> None:
    progress = LoadProgress("m")
    progress.add_line("WARNING 11-16 17:50:42 [import_utils.py:1] ImportError: no module x")
    assert progress.error == ""
    progress.add_line("ValueError: the reason")
    assert progress.error == "ValueError: the reason"


def test_the_reason_of_an_exit_is_its_last_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an old one, of which the process did not die."""
    program = tmp_path / "python"
    program.write_text(
        '#!/bin/sh\nread x\necho \'{"address": "tcp://127.0.0.1:1"}\'\n'
        f"echo '{ERROR_PREFIX}torch.OutOfMemoryError: CUDA out of memory.' >&2\n"
        f"echo '{ERROR_PREFIX}EngineDeadError: EngineCore encountered an issue.' >&2\n"
        f"echo '{ERROR_PREFIX}ValueError: a consequence' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    one = VllmProcess("m", EmbeddedVllmOptions(python=str(program)))
    one._progress.add_line("ValueError: an error of a request")
    one._progress._error_time -= 100

    async def end() -> str:
        await one.start({})
        assert await one._child.wait_for_exit(10)
        await one.stop()
        return one.describe_exit()

    reason = "torch.OutOfMemoryError: CUDA out of memory."
    assert asyncio.run(end()) == f"vLLM exited with status 1: {reason}"
    monkeypatch.setattr(process, "_CONSEQUENCE_SECONDS", 0.0)
    assert one.describe_exit() == "vLLM exited with status 1"


@pytest.mark.parametrize(
    "error",
    [
        "No module named 'vllm.v1.engine'",
        "cannot import name 'StructuredOutputsParams' from 'vllm.sampling_params' (/a/b.py)",
    ],
)
def test_another_version_of_vllm_is_not_reported_as_missing(error: str) -> None:
    one = VllmProcess("m", EmbeddedVllmOptions(python="/p/python"))
    text = f"the version of vLLM of /p/python is not supported ({error})"
    assert one.describe_failure(error) == text


def test_the_reason_of_a_validation_error_is_its_second_line() -> None:
    one = VllmProcess("m", EmbeddedVllmOptions())
    text = (
        "1 validation error for ModelConfig\n  Value error, max_model_len (9) is too large. "
        "[type=value_error, input_value=ArgsKwargs((), {'a': 1}), input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev"
    )
    assert one.describe_failure(text) == "vLLM cannot serve m: max_model_len (9) is too large."
    assert one.describe_failure("first\nsecond") == "vLLM cannot serve m: first"


@pytest.mark.parametrize("python", [None, sys.executable])
def test_a_missing_vllm_is_reported_with_the_remedy(python: str | None, tmp_path: Path) -> None:
    options = {} if python is None else {"python": python}
    engine = create_embedded(EngineSetup(ByteTokenizer(()), tmp_path, options=options))
    with pytest.raises(EngineUnavailable, match="--engine-option python=PATH") as got:
        asyncio.run(engine.start())
    assert "\n" not in got.value.message


def test_each_adapter_is_a_model_with_its_own_name(tmp_path: Path) -> None:
    folder = qwen_folder(tmp_path / "model")
    registry = build_service(
        Config(
            model=str(folder),
            engine="vllm",
            engine_option=("lora_modules=poet=/p,lawyer=/l",),
            store="memory",
            data_dir=tmp_path / "data",
        )
    )
    assert [entry.names for entry in registry.entries] == [("model",), ("poet",), ("lawyer",)]
    base, poet, _ = registry.entries
    assert isinstance(base, TokenModel)
    assert isinstance(poet, TokenModel)
    assert (base.adapter, poet.adapter) == (None, "poet")
    assert poet.engine is base.engine
    assert registry.find("claude-small") is base


def test_an_engine_table_has_the_name_and_the_options(tmp_path: Path) -> None:
    file = tmp_path / "dovetail.toml"
    file.write_text(
        'model = "m"\n[engine]\nname = "vllm"\nenforce-eager = true\nmax_model_len = 9\n'
        'kv_events_config = { publisher = "zmq" }\n'
    )
    config = load_config({}, {}, file).config
    assert config.engine == "vllm"
    assert config.engine_option == (
        "enforce-eager=true",
        "max_model_len=9",
        'kv_events_config={"publisher": "zmq"}',
    )
    file.write_text('[[models]]\nmodel = "m"\n[models.engine]\nname = "vllm"\nseed = 1\n')
    table = load_config({}, {}, file).config.models[0]
    assert (table["engine"], table["engine_option"]) == ("vllm", ("seed=1",))
    file.write_text('engine-option = ["a=b"]\n[engine]\nname = "vllm"\n')
    with pytest.raises(ConfigError, match="cannot be combined with"):
        load_config({}, {}, file)
