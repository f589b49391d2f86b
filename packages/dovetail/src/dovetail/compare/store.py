"""The folder of an experiment: its plan, and the records of its finished runs.

`experiment.json` is the plan. `runs.jsonl` has one line per finished run, written to the disk
before the next run starts; of several lines of one run, the last is valid. `requests/` has the
requests of each run, to compare the two of a pair; `logs/` the output of the harness.
"""

import fcntl
import gzip
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dovetail.compare.differences import SessionRequest
from dovetail.compare.records import Experiment, ProfileName, RunRecord
from dovetail.compare.task_set import CompareError

RunKey = tuple[str, int, ProfileName]
_PLAN_FIELDS = ("harness", "harness_version", "tasks", "runs", "seed", "profiles")


class PlanFile(msgspec.Struct, frozen=True):
    """The contents of experiment.json. `task_digests`: to recognize tasks that were changed."""

    experiment: Experiment
    task_digests: Mapping[str, str]


class ExperimentStore:
    """The files of one experiment. Only one process can use a folder at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = -1
        self._file = -1

    @property
    def log_dir(self) -> Path:
        return self.folder / "logs"

    def open(self, plan: PlanFile) -> dict[RunKey, RunRecord]:
        """Write the plan, or compare it with the one that is there. Returns the finished runs.

        Raises CompareError if the folder cannot be written, belongs to another plan, or another
        process uses it.
        """
        try:
            for folder in (self.folder, self.log_dir, self.folder / "requests"):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise CompareError(f"cannot write to --out {self.folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CompareError(f"another process runs the experiment in {self.folder}") from error
        stored = read_plan(self.folder)
        if stored is None or not read_records(self.folder):
            _write_file(self.folder / "experiment.json", msgspec.json.encode(plan))
        else:
            _require_same_plan(stored, plan, self.folder)
        self._file = os.open(
            self.folder / "runs.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        _end_last_line(self.folder / "runs.jsonl", self._file)
        return {_key(one): one for one in read_records(self.folder)}

    def append(self, record: RunRecord) -> None:
        """Add the record of a finished run. It is on the disk when this returns."""
        data = msgspec.json.encode(record) + b"\n"
        size = os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, size)  # a part of a line would damage the next one
            raise

    def write_requests(self, name: str, requests: Sequence[SessionRequest]) -> None:
        """Store the requests of a run, for the comparison with the other run of its pair."""
        data = gzip.compress(msgspec.json.encode(requests), 6, mtime=0)
        _write_file(self._requests_path(name), data)

    def read_requests(self, name: str) -> list[SessionRequest] | None:
        """Return the stored requests of a run; None if they are missing."""
        try:
            data = gzip.decompress(self._requests_path(name).read_bytes())
            return msgspec.json.decode(data, type=list[SessionRequest])
        except (OSError, EOFError, msgspec.MsgspecError):
            return None

    def close(self) -> None:
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _requests_path(self, name: str) -> Path:
        return self.folder / "requests" / f"{name}.json.gz"


def read_plan(folder: Path) -> PlanFile | None:
    """Return the plan of a folder; None if there is none. Raises CompareError."""
    path = folder / "experiment.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=PlanFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise CompareError(f"cannot read {path}: {error}") from error


def read_records(folder: Path) -> list[RunRecord]:
    """Return the last record of each run, in the order of their start. Raises CompareError.

    An incomplete last line, as after a crash, is skipped.
    """
    path = folder / "runs.jsonl"
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    found: dict[RunKey, RunRecord] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = msgspec.json.decode(line, type=RunRecord)
        except msgspec.MsgspecError as error:
            if number == len(lines) and not line.endswith(b"\n"):
                continue
            raise CompareError(f"{path}, line {number}: {error}") from error
        found[_key(record)] = record
    return sorted(found.values(), key=lambda one: one.position)


def _key(record: RunRecord) -> RunKey:
    return record.task, record.repetition, record.profile


def _require_same_plan(stored: PlanFile, plan: PlanFile, folder: Path) -> None:
    """Raise CompareError that names what differs."""
    before, now = msgspec.to_builtins(stored), msgspec.to_builtins(plan)
    for name in _PLAN_FIELDS:
        old, new = before["experiment"][name], now["experiment"][name]
        if old != new:
            if name == "profiles":
                side = next(one for one in ("a", "b") if old.get(one) != new.get(one))
                name, old, new = f"profile {side}", old.get(side), new.get(side)
            raise CompareError(
                f"{folder} contains an experiment with another plan: {name} was {old}, now {new}. "
                "Use the same arguments to continue it, or another --out folder"
            )
    changed = [
        name
        for name, digest in plan.task_digests.items()
        if stored.task_digests.get(name) != digest
    ]
    if changed:
        raise CompareError(
            f"{folder} contains an experiment with other versions of the tasks "
            f"{', '.join(changed)}; use another --out folder"
        )


def _end_last_line(path: Path, file: int) -> None:
    """Remove an incomplete last line, which a crash left. A complete record is kept."""
    data = path.read_bytes()
    if not data or data.endswith(b"\n"):
        return
    start = data.rfind(b"\n") + 1
    try:
        msgspec.json.decode(data[start:], type=RunRecord)
    except msgspec.MsgspecError:
        os.truncate(file, start)
    else:
        os.write(file, b"\n")


def _write_file(path: Path, data: bytes) -> None:
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(data)
    draft.replace(path)
