"""The child process that runs vLLM: its options, its progress, and why it failed."""

import asyncio
import logging
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dovetail.engines.process import ProcessSpec
from dovetail.engines.registry import EngineSetupError, parse_options
from dovetail.engines.steps.client import StepAddress
from dovetail.engines.steps.process import CHILD_SCRIPT, ListenOptions, StepProcess, has_package
from dovetail_model import EngineUnavailable

PROGRESS_INTERVAL_SECONDS = 15.0
CHILD_MODULE = "dovetail.engines.vllm.child.loader"
INSTALL_HINT = (
    "install vLLM in an environment of its own and set --engine-option python=PATH to its "
    "interpreter (docs/engines.md), or set --engine-url to a running server"
)
#: Time, level and source file before the text of vLLM's log lines.
_LOG_PREFIX = re.compile(r"^(?:\([^)]*\) )*(?:[A-Z]+ \d\d-\d\d [\d:.]+ )?(?:\[[^\]]+\] )?")
_STAGE = re.compile(
    r"Initializing a V1|Time spent downloading|Download|Fetching|Starting to load|Loading "
    r"|\w+ KV cache size|Capturing|Compiling|torch\.compile|init engine"
)
_LAST_STAGE = "init engine"
_ERROR = re.compile(r"\b((?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit): .+)")
#: What vLLM reports for every failure of the process that loads the model.
_UNSPECIFIC = ("Engine core initialization failed", "WorkerProc initialization failed")
_VALIDATION = re.compile(r"\d+ validation errors? for ")
_VALIDATION_DETAIL = re.compile(r" \[type=.*", re.DOTALL)
_MAX_REASON_CHARS = 300
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")

_log = logging.getLogger(__name__)


class EmbeddedVllmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dovetail's own options of the embedded engine. All others are vLLM's engine arguments.

    `python`: the interpreter that has vLLM; by default, the one that runs the server.
    `lora_modules`: the folders of LoRA adapters by name, as a JSON object or as NAME=FOLDER
    separated by commas.
    `logs`: forward vLLM's log.
    `tcp`: use a loopback port, which is required on systems without unix sockets.
    """

    python: str | None = None
    lora_modules: str = ""
    logs: bool = False
    tcp: bool = False
    start_timeout: float = 1800.0


def split_options(options: Mapping[str, Any]) -> tuple[EmbeddedVllmOptions, dict[str, str]]:
    """Separate Dovetail's own options from vLLM's engine arguments."""
    own = {one.name for one in msgspec.structs.fields(EmbeddedVllmOptions)}
    mine = {name: value for name, value in options.items() if name in own}
    arguments = {name: str(value) for name, value in options.items() if name not in own}
    return parse_options(mine, EmbeddedVllmOptions), arguments


def parse_adapters(text: str) -> dict[str, str]:
    """Parse `lora_modules`. Raise `EngineSetupError` if it has neither of its two forms."""
    if not text.strip():
        return {}
    try:
        if text.lstrip().startswith("{"):
            return msgspec.json.decode(text, type=dict[str, str])
        pairs = [pair.split("=", 1) for pair in text.split(",")]
        return {name.strip(): folder.strip() for name, folder in pairs}
    except ValueError as error:
        raise EngineSetupError(
            f"lora_modules must be NAME=FOLDER,... or a JSON object, got {text!r}"
        ) from error


def model_reference(path: Path) -> str:
    """Return what vLLM loads: the path, or the hub id if its weights are not downloaded yet."""
    if path.is_file() or any(one.suffix in _WEIGHT_SUFFIXES for one in path.iterdir()):
        return str(path)
    repository = path.parent.parent.name  # models--ORGANISATION--NAME/snapshots/REVISION
    if path.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return str(path)


class VllmProcess(StepProcess):
    """The process of one model. vLLM starts its own child processes in it."""

    __slots__ = ("_model", "_progress", "_python")

    def __init__(self, model: str, options: EmbeddedVllmOptions) -> None:
        self._model = model
        self._python = options.python and str(Path(options.python).expanduser())
        self._progress = progress = LoadProgress(model)
        super().__init__(
            ProcessSpec(
                name="vLLM",
                command=(self._python or sys.executable, "-P", str(CHILD_SCRIPT)),
                environment={"VLLM_NO_USAGE_STATS": "1"},
                start_timeout=options.start_timeout,
                forward_logs=options.logs,
                on_log_line=progress.add_line,
            ),
            CHILD_MODULE,
        )

    async def start(
        self, config: Mapping[str, Any], *, tcp: bool = False, listen: ListenOptions | None = None
    ) -> StepAddress:
        """Load the model, and log its progress meanwhile: a download may take long."""
        progress = asyncio.create_task(self._log_progress())
        try:
            return await super().start(config, tcp=tcp, listen=listen)
        finally:
            progress.cancel()

    async def _log_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_SECONDS)
            self._progress.log()

    def check_installed(self) -> None:
        """Raise an error with the remedy if this interpreter is used and has no vLLM."""
        if self._python is None and not has_package("vllm"):
            raise EngineUnavailable(f"the engine 'vllm' requires the package vllm: {INSTALL_HINT}")

    def describe_failure(self, error: str | None) -> str:
        """Return the reason as one line: what the loading process logged is the most precise."""
        if error and "No module named 'vllm" in error:
            return f"{self._python} has no vLLM: {INSTALL_HINT}"
        reason = error if error and not _is_unspecific(error) else self._progress.error
        reason = _first_line(reason or error or self.describe_exit())
        return f"vLLM cannot serve {self._model}: {reason[:_MAX_REASON_CHARS]}"


class LoadProgress:
    """Logs the stages of loading a model, from vLLM's log.

    `error`: the first specific error; later ones are its consequences.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._started = time.monotonic()
        self._loaded = False
        self._stage = "starting"
        self.error = ""

    def add_line(self, line: str) -> None:
        """Process a line of the log."""
        text = _LOG_PREFIX.sub("", line)
        error = _ERROR.search(text)
        if error is not None:
            if not self.error and not _is_unspecific(text):
                self.error = error[1]
        elif not self._loaded and _STAGE.match(text):
            self._loaded = text.startswith(_LAST_STAGE)
            self._stage = text.partition(" with config:")[0][:_MAX_REASON_CHARS]
            self.log()

    def log(self) -> None:
        """Log the current stage. Called at each stage, and at intervals within long ones."""
        duration = round((time.monotonic() - self._started) * 1000)
        fields = {"engine": "vllm", "model": self._model, "stage": self._stage}
        _log.info("engine_loading", extra={"fields": {**fields, "duration_ms": duration}})


def _first_line(text: str) -> str:
    """Return the reason in a text of several lines. Pydantic's is not in the first one."""
    lines = text.strip().splitlines()
    if len(lines) > 1 and _VALIDATION.match(lines[0]):
        reason = " ".join(line.strip() for line in lines[1:])
        return _VALIDATION_DETAIL.sub("", reason).removeprefix("Value error, ")
    return lines[0]


def _is_unspecific(text: str) -> bool:
    return any(phrase in text for phrase in _UNSPECIFIC)
