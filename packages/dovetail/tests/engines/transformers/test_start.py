"""Start, start failures and stop of the transformers engine, without torch.

A substitute for the interpreter with torch reads the same configuration and serves a script instead
of a model. All other parts are real.
"""

import asyncio
import importlib.util
import json
import os
import signal
import sys
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from scripted_fixture import CONTROLS, END, TOKENIZER, ids

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.registry import EngineSetup, EngineSetupError, create_engine
from dovetail.engines.steps.process import package_folders
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.transformers.child.sampling_params import SamplingDefaults
from dovetail.engines.transformers.engine import TransformersEngine
from dovetail.engines.transformers.process import last_error_line
from dovetail_model import ContextOverflow, EngineUnavailable, Sampling

FAKE_CHILD = f"""\
#!{sys.executable}
import json, runpy, sys, types
from pathlib import Path
from dovetail.engines.scripted import ScriptedEngine, parse_script
from dovetail.engines.steps.messages import describe_engine
from dovetail_tokenizers import ByteTokenizer

class FakeEngine(ScriptedEngine):
    async def health(self):
        state = await super().health()
        if not state.ready:
            print("torch.OutOfMemoryError: CUDA out of memory.", file=sys.stderr, flush=True)
        return state

    def describe(self):
        return self.description

def load(config):
    folder = Path(config["model"])
    tokenizer = ByteTokenizer({CONTROLS!r})
    engine = FakeEngine(tokenizer, parse_script((folder / "script.yaml").read_text()))
    facts = {{"device": "none", "config": json.dumps(config["options"])}}
    engine.description = describe_engine(
        "transformers", engine.capabilities, context_length=100, facts=facts
    )
    return engine

module = types.ModuleType("dovetail.engines.transformers.child.server")
module.load = load
sys.modules[module.__name__] = module
runpy.run_path(sys.argv[2], run_name="__main__")
"""


def program(folder: Path, text: str) -> str:
    """Write a program and return its path, for use as the interpreter."""
    path = folder / "program"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def weights(folder: Path, script: str = "[{text: hello}]") -> Path:
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    (folder / "script.yaml").write_text(script)
    return folder


def engine(folder: Path, **options: Any) -> TransformersEngine:
    fake = create_engine("transformers", EngineSetup(TOKENIZER, folder, options=options))
    assert isinstance(fake, TransformersEngine)
    return fake


def fake_engine(folder: Path, script: str, **options: Any) -> TransformersEngine:
    return engine(weights(folder, script), python=program(folder, FAKE_CHILD), **options)


def make_request(prompt: str = "hi", **fields: Any) -> EngineRequest:
    fields = {"max_tokens": 50, "stop_ids": frozenset({END}), **fields}
    return EngineRequest("r", array("I", ids(prompt)), **fields)


async def collect(fake: TransformersEngine, request: EngineRequest) -> list[TokenDelta]:
    return [delta async for delta in iter_deltas(fake, request)]


def text_of(deltas: list[TokenDelta]) -> str:
    return TOKENIZER.decode([id for delta in deltas for id in delta.ids])


def sockets() -> list[Path]:
    """Return the sockets of engines in the folder of temporary files."""
    return list(Path(tempfile.gettempdir()).glob("dovetail-*/engine.sock"))


@pytest.fixture
def short_folder() -> Iterator[str]:
    """A folder with a short path: that of a unix socket has at most about 100 characters."""
    with tempfile.TemporaryDirectory(prefix="short-") as folder:
        yield folder


def test_interpreter_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell does not expand the tilde in `--engine-option python=~/torch/bin/python`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    program(tmp_path, FAKE_CHILD)
    fake = engine(weights(tmp_path), python="~/program")

    async def main() -> None:
        await fake.start()
        assert (await fake.health()).ready
        await fake.stop()

    asyncio.run(main())


@pytest.mark.parametrize("tcp", [False, True])
def test_start_generate_stop(
    tmp_path: Path, short_folder: str, tcp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", short_folder)
    fake = fake_engine(tmp_path, "[{text: hello}]", tcp=tcp)

    async def main() -> None:
        assert fake.capabilities.local
        assert fake.capabilities.context_length == 4096  # as reported by the folder
        assert (await fake.health()).detail == "not started"
        with pytest.raises(EngineUnavailable, match="not running"):
            await collect(fake, make_request())
        await fake.start()
        await fake.start()  # already running
        assert fake.capabilities.context_length == 100  # as reported by the process
        assert fake.capabilities.cached_tokens
        deltas = await collect(fake, make_request("x" * 40))
        assert text_of(deltas) == "hello<|end|>"
        assert (deltas[-1].finish, deltas[0].cached) == ("stop", 0)
        assert (await collect(fake, make_request("x" * 40)))[0].cached == 32
        health = await fake.health()
        assert health.ready
        assert health.facts is not None
        assert (health.facts["running"], health.facts["device"]) == (0, "none")
        with pytest.raises(ContextOverflow):
            await collect(fake, make_request("x" * 100))
        assert bool(sockets()) != tcp
        await fake.stop()
        assert not (await fake.health()).ready
        assert not sockets()

    asyncio.run(main())


def test_options_reach_the_process(tmp_path: Path) -> None:
    fake = fake_engine(tmp_path, "[{text: a}]", dtype="float16", device_map="cuda:1", max_batch="3")

    async def main() -> None:
        await fake.start()
        facts = (await fake.health()).facts or {}
        config = json.loads(str(facts["config"]))
        assert (config["dtype"], config["device_map"], config["max_batch"]) == (
            "float16",
            "cuda:1",
            3,
        )
        await fake.stop()

    asyncio.run(main())


def test_killed_during_a_stream_and_restarted(tmp_path: Path) -> None:
    fake = fake_engine(tmp_path, "[{text: hello, hang: 2}, {text: again}]")

    async def main() -> None:
        await fake.start()
        async with aclosing(iter_deltas(fake, make_request())) as deltas:
            await anext(deltas)
            os.kill(fake.pid or 0, signal.SIGKILL)
            with pytest.raises(EngineUnavailable, match="transformers was killed"):
                async for _ in deltas:
                    pass
        assert "killed" in (await fake.health()).detail
        await fake.stop()
        (tmp_path / "script.yaml").write_text("[{text: again}]")
        await fake.start()
        assert text_of(await collect(fake, make_request())) == "again<|end|>"
        await fake.stop()

    asyncio.run(main())


def test_exit_is_reported_with_its_last_error(tmp_path: Path) -> None:
    fake = fake_engine(tmp_path, "[{text: hello, die: 2}]")

    async def main() -> None:
        await fake.start()
        with pytest.raises(EngineUnavailable, match=r"exited with status 1: .*CUDA out of memory"):
            await collect(fake, make_request())
        assert "out of memory" in (await fake.health()).detail
        await fake.stop()

    asyncio.run(main())


def test_stopped_during_a_stream(tmp_path: Path) -> None:
    fake = fake_engine(tmp_path, "[{text: hello, hang: 2}]")

    async def main() -> None:
        await fake.start()
        async with aclosing(iter_deltas(fake, make_request())) as deltas:
            await anext(deltas)
            await fake.stop()
            with pytest.raises(EngineUnavailable):
                async for _ in deltas:
                    pass

    asyncio.run(main())


def test_torch_missing_in_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        EngineUnavailable, match=r"requires the package torch: pip install 'dovetail\["
    ):
        asyncio.run(engine(weights(tmp_path)).start())


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_torch_missing_in_the_configured_interpreter(tmp_path: Path) -> None:
    fake = engine(weights(tmp_path), python=sys.executable)
    with pytest.raises(EngineUnavailable, match=r"No module named 'torch' \(pip install") as raised:
        asyncio.run(fake.start())
    assert str(tmp_path) in raised.value.message
    assert not asyncio.run(fake.health()).ready


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\necho hello\nread x\n", "not a JSON object: 'hello'"),
        ("#!/bin/sh\nexit 4\n", r"transformers exited with status 4"),
        ("#!/bin/sh\necho 'SomeError: bad' >&2\nexit 1\n", r"exited with status 1: SomeError: bad"),
        ('#!/bin/sh\necho \'{"error": "no weights"}\'\n', "no weights"),
        ('#!/bin/sh\ncat <<\'X\'\n{"error": "\\nunknown\\nadvice"}\nX\n', "unknown$"),
    ],
)
def test_invalid_interpreters(tmp_path: Path, text: str, message: str) -> None:
    fake = engine(weights(tmp_path), python=program(tmp_path, text))
    with pytest.raises(EngineUnavailable, match=message):
        asyncio.run(fake.start())


def test_missing_interpreter(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="cannot run /no/python"):
        asyncio.run(engine(weights(tmp_path), python="/no/python").start())


def test_folders_and_options(tmp_path: Path) -> None:
    wanted = "requires a folder with config.json and weights"
    for path, reason in (
        (None, wanted),
        (tmp_path / "none", f"{wanted}, but .* does not exist"),
        (tmp_path, "is a folder without them"),
        (Path(__file__), "is a file"),
    ):
        with pytest.raises(EngineSetupError, match=reason):
            create_engine("transformers", EngineSetup(TOKENIZER, path))
    weights(tmp_path)
    for options, name in (({"max_batch": 0}, "max_batch"), ({"speed": 1}, "speed")):
        with pytest.raises(EngineSetupError, match=f"options are invalid: .*{name}"):
            engine(tmp_path, **options)
    fixed = EngineSetup(TOKENIZER, tmp_path, context_length=77)
    assert create_engine("transformers", fixed).capabilities.context_length == 77


def test_package_folders_contain_our_sources() -> None:
    folders = package_folders()
    assert list(folders) == ["dovetail", "dovetail_model", "dovetail_tokenizers"]
    assert all((Path(one) / "__init__.py").is_file() for one in folders.values())


def test_last_error_of_a_log() -> None:
    log = ["Loading", "ValueError: first", "  at x", "torch.OutOfMemoryError: second", "bye"]
    assert last_error_line(log) == "torch.OutOfMemoryError: second"
    assert last_error_line(["all is well"]) == ""


@pytest.mark.parametrize(
    ("defaults", "sampling", "expected"),
    [
        ({}, Sampling(), (1.0, 0, 1.0)),
        ({"temperature": 0.6, "top_k": 20, "top_p": 0.95}, Sampling(), (0.6, 20, 0.95)),
        ({"temperature": 0.6, "top_k": 20}, Sampling(temperature=1, top_k=-1), (1.0, 0, 1.0)),
        ({"temperature": 0.6, "top_k": 20}, Sampling(temperature=0.0, top_p=0.1), (0.0, 0, 1.0)),
        ({"temperature": None}, Sampling(top_k=5000, top_p=2.0), (1.0, 0, 1.0)),
    ],
)
def test_sampling(
    defaults: dict[str, Any], sampling: Sampling, expected: tuple[float, int, float]
) -> None:
    draw = SamplingDefaults(defaults, 1000).resolve(sampling)
    assert (draw.temperature, draw.top_k, draw.top_p) == expected
