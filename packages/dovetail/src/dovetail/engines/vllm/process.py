"""The child process that runs vLLM: its options, its progress, and why it failed."""

import asyncio
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dovetail.engines.process import ProcessSpec
from dovetail.engines.registry import EngineSetupError, parse_options
from dovetail.engines.steps.client import StepAddress
from dovetail.engines.steps.process import CHILD_SCRIPT, ListenOptions, StepProcess, has_package
from dovetail.engines.vllm.download import DownloadProgress
from dovetail_model import EngineUnavailable

PROGRESS_INTERVAL_SECONDS = 15.0
CHILD_MODULE = "dovetail.engines.vllm.child.loader"
INSTALL_HINT = (
    "install vLLM in an environment of its own and set --engine-option python=PATH to its "
    "interpreter (docs/engines.md), or set --engine-url to a running server"
)
#: Time, level and source file before the text of vLLM's log lines.
_LOG_PREFIX = re.compile(
    r"^(?:\([^)]*\) )*(?:(?P<level>[A-Z]+) \d\d-\d\d [\d:.]+ )?(?:\[[^\]]+\] )?"
)
_HARMLESS_LEVELS = ("DEBUG", "INFO", "WARNING")
_STAGE = re.compile(
    r"Initializing a V1|Time spent downloading|Download|Fetching|Starting to load|Loading "
    r"|\w+ KV cache size|Capturing|Compiling|torch\.compile|init engine"
)
_LAST_STAGE = "init engine"
_ERROR = re.compile(r"\b((?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit): .+)")
#: What vLLM reports for every failure of the process that loads and runs the model.
_UNSPECIFIC = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "EngineCore encountered an issue",
)
#: An error is a consequence of another one that was logged less than this before it.
_CONSEQUENCE_SECONDS = 30.0
#: Modules and names that another version of vLLM has.
_OTHER_VERSION = re.compile(r"No module named 'vllm\.|cannot import name .* from 'vllm[.']")
_VALIDATION = re.compile(r"\d+ validation errors? for ")
_VALIDATION_DETAIL = re.compile(r" \[type=.*", re.DOTALL)
_MAX_REASON_CHARS = 300
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")
_SHARD = re.compile(r"(?P<set>.+)-\d+-of-(?P<count>\d+)\.\w+")

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
    if "model" in options:  # vLLM would run another model than the one whose prompts are tokenized
        raise EngineSetupError("the model is not an engine option: pass it as MODEL")
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
            adapters = msgspec.json.decode(text, type=dict[str, str])
        else:
            pairs = [pair.split("=", 1) for pair in text.split(",")]
            adapters = {name.strip(): folder.strip() for name, folder in pairs}
        if not all((*adapters, *adapters.values())):
            raise ValueError("a name or a folder is empty")
        return adapters
    except ValueError as error:
        raise EngineSetupError(
            f"lora_modules must be NAME=FOLDER,... or a JSON object, got {text!r}"
        ) from error


def model_reference(path: Path) -> str:
    """Return what vLLM loads: the path, or the hub id if not all weights are downloaded yet.

    Raise `EngineSetupError` for a GGUF file, such as that of the default model.
    """
    if path.suffix == ".gguf":
        raise EngineSetupError(
            "the engine 'vllm' requires MODEL, a folder or a hub id, or --engine-url: "
            f"{path.name} is a GGUF file, which requires --engine llamacpp"
        )
    repository = path.parent.parent.name  # models--ORGANISATION--NAME/snapshots/REVISION
    is_snapshot = path.parent.name == "snapshots" and repository.startswith("models--")
    if is_snapshot and not _has_weights(path):
        return repository.removeprefix("models--").replace("--", "/")
    return str(path)


def _has_weights(folder: Path) -> bool:
    """Return whether the weights are complete. An interrupted download leaves some of the files."""
    names = [one.name for one in folder.iterdir() if one.suffix in _WEIGHT_SUFFIXES]
    shards = Counter((one["set"], int(one["count"])) for one in map(_SHARD.fullmatch, names) if one)
    if not shards:
        return bool(names)
    return any(found == count for (_, count), found in shards.items())


class VllmProcess(StepProcess):
    """The process of one model. vLLM starts its own child processes in it."""

    __slots__ = ("_model", "_progress", "_python")

    def __init__(
        self, model: str, options: EmbeddedVllmOptions, download_dir: str | None = None
    ) -> None:
        self._model = model
        self._python = options.python and str(Path(options.python).expanduser())
        self._progress = progress = LoadProgress(model, download_dir)
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
        if error and "No module named 'vllm'" in error:
            return f"{self._python} has no vLLM: {INSTALL_HINT}"
        if error and _OTHER_VERSION.match(error):
            python = self._python or sys.executable
            return f"the version of vLLM of {python} is not supported ({_first_line(error)})"
        reason = error if error and not _is_unspecific(error) else self._progress.error
        reason = _first_line(reason or error or super().describe_exit())
        return f"vLLM cannot serve {self._model}: {reason[:_MAX_REASON_CHARS]}"

    def describe_exit(self) -> str:
        """Describe how the process ended, with the error that it logged before."""
        error = "" if self.alive else self._progress.recent_error
        return f"{super().describe_exit()}: {error}" if error else super().describe_exit()


class LoadProgress:
    """Logs the stages of loading a model, from vLLM's log.

    `error`: the last specific error that was not a consequence of the one before it.
    """

    def __init__(self, model: str, download_dir: str | None = None) -> None:
        self._model = model
        self._download = DownloadProgress(model, download_dir)
        self._started = time.monotonic()
        self._loaded = False
        self._stage = "starting"
        self.error = ""
        self._error_time = 0.0

    @property
    def recent_error(self) -> str:
        """The error, if it is recent enough to be the reason of what happens now."""
        recent = time.monotonic() - self._error_time < _CONSEQUENCE_SECONDS
        return self.error[:_MAX_REASON_CHARS] if recent else ""

    def add_line(self, line: str) -> None:
        """Process a line of the log."""
        prefix = _LOG_PREFIX.match(line)
        assert prefix is not None  # it may be empty
        text = line[prefix.end() :]
        error = _ERROR.search(text)
        if error is not None and prefix["level"] not in _HARMLESS_LEVELS:
            if not _is_unspecific(text):
                self._add_error(error[1])
        elif not self._loaded and _STAGE.match(text):
            self._loaded = text.startswith(_LAST_STAGE)
            self._stage = text.partition(" with config:")[0][:_MAX_REASON_CHARS]
            self.log()

    def _add_error(self, error: str) -> None:
        now = time.monotonic()
        if not self.error or now - self._error_time > _CONSEQUENCE_SECONDS:
            self.error = error
        self._error_time = now

    def log(self) -> None:
        """Log the current stage. Called at each stage, and at intervals within long ones."""
        duration = round((time.monotonic() - self._started) * 1000)
        fields: dict[str, Any] = {"engine": "vllm", "model": self._model, "stage": self._stage}
        if downloaded := self._download.megabytes:
            fields["downloaded_mb"] = downloaded
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
