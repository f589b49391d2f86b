"""Run the check of a task in a process of its own, and end the processes that it leaves behind.

The exit status of Python does not distinguish `sys.exit(1)` from an uncaught exception, so the
check is run by a few lines of code that do.
"""

import asyncio
import os
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_CRASH_STATUS = 70
_RUN_CHECK = f"""
import runpy, sys, traceback
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except Exception:
    traceback.print_exc()
    sys.exit({_CRASH_STATUS})
"""
_POLL_SECONDS = 0.02
_MAX_OUTPUT_BYTES = 16 << 20
_EXCERPT_BYTES = 4096


@dataclass(frozen=True)
class CheckResult:
    """How a check ended. `status` is None if it exceeded the time limit.

    `output`: the beginning of its standard output.
    `failure`: why its result is unknown, or None.
    """

    status: int | None
    output: str
    failure: str | None = None


async def run_check(check: Path, workspace: Path, max_seconds: float) -> CheckResult:
    """Run a check in a workspace."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        # Files and no pipes: processes that the check leaves behind would keep a pipe open.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", _RUN_CHECK, str(check)),
            cwd=workspace,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        is_too_long = False
        try:
            async with asyncio.timeout(max_seconds):
                while process.returncode is None and not is_too_long:
                    await asyncio.sleep(_POLL_SECONDS)
                    is_too_long = _size(output) + _size(errors) > _MAX_OUTPUT_BYTES
        except TimeoutError:
            return CheckResult(None, "")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(process.wait())
        if is_too_long:
            return CheckResult(None, "", f"printed more than {_MAX_OUTPUT_BYTES >> 20} MiB")
        return _read_result(process.returncode, output, errors)


def _read_result(status: int | None, output: IO[bytes], errors: IO[bytes]) -> CheckResult:
    output.seek(0)
    reason = _clean(output.read(_EXCERPT_BYTES))
    errors.seek(max(0, _size(errors) - _EXCERPT_BYTES))
    last_line = (_clean(errors.read()).splitlines() or ["no message"])[-1]
    return CheckResult(status, reason, _describe_failure(status, reason, last_line))


def _describe_failure(status: int | None, reason: str, last_line: str) -> str | None:
    if status is None or status == 0 or (status == 1 and reason):
        return None
    if status < 0:
        return f"was ended by signal {-status}: {last_line}"
    if status == 1:
        return f"exited with status 1 without a reason on its standard output: {last_line}"
    if status == _CRASH_STATUS:
        return f"crashed: {last_line}"
    return f"exited with status {status}, expected 0 or 1: {last_line}"


def _clean(data: bytes) -> str:
    """Return bytes as text without control characters, which a terminal would obey."""
    text = data.decode("utf-8", "replace")
    return "".join(one if one.isprintable() or one == "\n" else "\N{REPLACEMENT CHARACTER}"
                   for one in text.replace("\t", " ")).strip()  # fmt: skip


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size
