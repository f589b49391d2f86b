"""Write the trace: encode finished requests, append them to a file, rotate and compress it.

A rotated file has its time in the name: `trace.jsonl.20261115T084103.120000Z.gz`. Only the owner
can read the files.
"""

import fcntl
import gzip
import logging
import os
import re
import shutil
import stat
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Literal

import msgspec

from dovetail.telemetry.record import RequestContents, RequestRecord

_FILE_MODE = 0o600
_TIMESTAMP_PATTERN = r"\d{8}T\d{6}\.\d{6}Z"
_MAX_WRITERS = 256  # processes that can share one file name


class TraceFile:
    """The trace file of one process. If another process writes to it, a numbered name is used.

    It is never rotated if `max_bytes` is 0. Raises `OSError` if it cannot be written.
    """

    def __init__(self, path: Path, max_bytes: int, max_rotated_files: int) -> None:
        self._max_bytes = max_bytes
        self._max_rotated_files = max_rotated_files
        self.path, self._lock = _claim_path(path)
        self._line_truncated = False  # whether the last line is incomplete
        self._file = -1
        try:
            self._open()
            self._compress_and_prune()
        except BaseException:
            os.close(self._lock)
            raise

    def write(self, line: bytes) -> None:
        """Append a line. Raises `OSError` if it fails; the next line then begins with a newline."""
        if self._is_regular_file and 0 < self._max_bytes < self._size + len(line) and self._size:
            self._rotate()
        data = b"\n" + line if self._line_truncated else line
        self._line_truncated = True
        while data:
            written = os.write(self._file, data)
            self._size += written
            data = data[written:]
        self._line_truncated = False

    def close(self) -> None:
        os.close(self._file)
        os.close(self._lock)

    def _open(self) -> None:
        """Open the file. If this fails, the previous file stays open."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, _FILE_MODE)
        if self._file >= 0:
            os.close(self._file)
        self._file = descriptor
        status = os.fstat(self._file)
        self._is_regular_file = stat.S_ISREG(status.st_mode)
        self._size = status.st_size
        if self._is_regular_file:
            os.fchmod(self._file, _FILE_MODE)
            self._line_truncated = (
                self._size > 0 and os.pread(self._file, 1, self._size - 1) != b"\n"
            )

    def _rotate(self) -> None:
        """Rename the file, start a new one, and compress the old one."""
        with suppress(FileNotFoundError):  # the file was removed, or a new one could not be opened
            os.rename(self.path, self.path.with_name(f"{self.path.name}.{_timestamp()}"))
        self._open()
        self._compress_and_prune()

    def _compress_and_prune(self) -> None:
        """Compress rotated files, including those left by a crash, and delete the oldest."""
        rotated = re.compile(rf"{re.escape(self.path.name)}\.{_TIMESTAMP_PATTERN}(\.gz)?")
        names = (entry.name for entry in os.scandir(self.path.parent))
        rotated_names = sorted(name for name in names if rotated.fullmatch(name))
        retained = rotated_names[-self._max_rotated_files :] if self._max_rotated_files > 0 else []
        for name in rotated_names:
            path = self.path.with_name(name)
            if name not in retained:
                path.unlink(missing_ok=True)
            elif not name.endswith(".gz"):
                _compress(path)


def _timestamp() -> str:
    now = time.time_ns()
    seconds = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 10**9))
    return f"{seconds}.{now % 10**9 // 1000:06d}Z"


def _compress(path: Path) -> None:
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    with (
        path.open("rb") as source,
        os.fdopen(descriptor, "wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6) as packed,
    ):
        shutil.copyfileobj(source, packed, 1 << 20)
    part.rename(path.with_name(f"{path.name}.gz"))
    path.unlink(missing_ok=True)


def _claim_path(path: Path) -> tuple[Path, int]:
    """Return the first file name that no other process uses, and its lock."""
    for number in count(1):
        own = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        lock = os.open(
            own.with_name(f".{own.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE
        )
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return own, lock
        os.close(lock)
        if number == _MAX_WRITERS:
            break
    raise OSError(f"{path}: already {_MAX_WRITERS} processes write to this trace")


TRACE_SCHEMA = "dovetail.request/1"
PREFIX_BLOCK_TOKENS = 512  # by default; smaller blocks make lines longer
_DIGEST_BYTES = 8
_DIGEST_PERSON = b"dovetail.prefix"


class TracePayload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request and response bodies as text, if they are traced."""

    request: str | None = None
    response: str | None = msgspec.field(default=None, name="answer")


class TraceLine(RequestRecord, frozen=True, kw_only=True, tag_field="schema", tag=TRACE_SCHEMA):
    """A finished request, with digests of the leading blocks of its prompt.

    Each digest covers all tokens up to the end of its block and uses the key of the tenant: equal
    digests mean equal prefixes within a tenant and a model, and digests cannot be guessed.
    `prefix_block_tokens`: the tokens of a block.
    `payload` is set only if the operator enabled it.
    """

    event: Literal["request_end"]
    prefix_blocks: tuple[str, ...] = ()
    prefix_block_tokens: int = PREFIX_BLOCK_TOKENS
    payload: TracePayload | None = None


def encode_trace_line(
    record: RequestRecord, contents: RequestContents, block_tokens: int = PREFIX_BLOCK_TOKENS
) -> bytes:
    """Encode a request as a line, including the newline."""
    fields = {name: getattr(record, name) for name in RequestRecord.__struct_fields__}
    line = TraceLine(
        event="request_end",
        prefix_blocks=hash_prefix_blocks(contents.ids, contents.key, record.model, block_tokens),
        prefix_block_tokens=block_tokens,
        payload=_payload(contents),
        **fields,
    )
    return msgspec.json.encode(line) + b"\n"


def hash_prefix_blocks(
    ids: "array[int] | None", key: bytes, model: str, block_tokens: int = PREFIX_BLOCK_TOKENS
) -> tuple[str, ...]:
    """Return the digests of the complete leading blocks of a prompt, none without a key."""
    if ids is None or not key:
        return ()
    data, size = memoryview(ids).cast("B"), block_tokens * ids.itemsize
    digests, previous = [], model.encode()
    for start in range(0, len(data) - size + 1, size):
        digest = blake2b(
            previous + data[start : start + size],
            digest_size=_DIGEST_BYTES,
            key=key[:64],
            person=_DIGEST_PERSON,
        )
        previous = digest.digest()
        digests.append(previous.hex())
    return tuple(digests)


def _payload(contents: RequestContents) -> TracePayload | None:
    if contents.body is None and contents.response_body is None:
        return None
    return TracePayload(_decode_text(contents.body), _decode_text(contents.response_body))


def _decode_text(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "replace")


MAX_QUEUED_BYTES = 64 << 20  # above this, requests are dropped and counted
CLOSE_TIMEOUT_SECONDS = 10.0  # for queued lines
_LINE_OVERHEAD_BYTES = 2048  # per queued record, in addition to its contents

_log = logging.getLogger(__name__)


class TraceWriter:
    """A recorder that writes a trace in a thread.

    `on_drop` is called for dropped requests. Without `payloads`, bodies are left out even if they
    were captured for another recorder.
    """

    def __init__(
        self,
        file: TraceFile,
        on_drop: Callable[[], None] = lambda: None,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        *,
        payloads: bool = True,
        block_tokens: int = PREFIX_BLOCK_TOKENS,
    ) -> None:
        self._payloads = payloads
        self._file = file
        self._block_tokens = block_tokens
        self._on_drop = on_drop
        self._max_queued_bytes = max_queued_bytes
        self._queue: SimpleQueue[tuple[RequestRecord, RequestContents, int] | None] = SimpleQueue()
        self._enqueued_bytes = 0  # updated by the event loop only
        self._processed_bytes = 0  # updated by the thread only
        self._failing = False
        self._thread = Thread(target=self._run, name="dovetail-trace", daemon=True)
        self._thread.start()

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None:
        if not self._payloads and (contents.body or contents.response_body):
            contents = msgspec.structs.replace(contents, body=None, response_body=None)
        size = _LINE_OVERHEAD_BYTES + sum(
            len(part) for part in (contents.body, contents.response_body) if part is not None
        )
        if contents.ids is not None:
            size += len(contents.ids) * contents.ids.itemsize
        if self._enqueued_bytes - self._processed_bytes + size > self._max_queued_bytes:
            self._on_drop()
            return
        self._enqueued_bytes += size
        self._queue.put((record, contents, size))

    def close(self) -> None:
        """Write queued records, within the timeout."""
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT_SECONDS)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            record, contents, size = item
            self._write(record, contents)
            self._processed_bytes += size
        self._file.close()

    def _write(self, record: RequestRecord, contents: RequestContents) -> None:
        try:
            self._file.write(encode_trace_line(record, contents, self._block_tokens))
            self._failing = False
        except Exception as error:  # a failing trace must not fail requests
            self._on_drop()
            if not self._failing:
                fields = {"file": str(self._file.path), "reason": f"{error}"}
                _log.warning("trace_write_failed", extra={"fields": fields})
            self._failing = True
