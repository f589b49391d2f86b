"""Run a harness with the user's terminal, signals and exit status."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit

from dovetail.launch.plan import Harness, LaunchError, LaunchPlan
from dovetail.launch.private_files import remove_private_files, write_private_files

_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
#: Python ignores these. A harness would inherit that, and `yes | head` would report an error.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def find_executable(harness: Harness) -> str:
    """Find the installed harness. Raises LaunchError."""
    found = shutil.which(harness.executable)
    if found is None:
        raise LaunchError(
            f"{harness.title} is not installed: {harness.executable!r} is not on the PATH. "
            f"Install it with: {harness.install_command}"
        )
    return found


def build_environment(plan: LaunchPlan, inherited: Mapping[str, str]) -> dict[str, str]:
    """Apply the plan's changes to the inherited environment."""
    retained = {
        name: value for name, value in inherited.items() if name not in plan.unset_variables
    }
    return {**retained, **plan.environment}


def build_proxy_bypass(address: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that exclude the server from the user's proxy.

    They are always set, because a harness may read its proxy from its own configuration files.
    """
    host = urlsplit(address).hostname or ""
    existing = inherited.get("no_proxy") or inherited.get("NO_PROXY") or ""
    hosts = ",".join(part for part in (existing, host) if part)
    return {"no_proxy": hosts, "NO_PROXY": hosts}


def exec_harness(plan: LaunchPlan, environment: Mapping[str, str]) -> NoReturn:
    """Replace this process with the harness."""
    write_private_files(plan.files)
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    os.execve(plan.command[0], plan.command, environment)


def run_harness(plan: LaunchPlan, environment: Mapping[str, str]) -> int:
    """Run the harness to its end and return the status to exit with."""
    write_private_files(plan.files)
    process: subprocess.Popen[bytes] | None = None

    def forward_signal(number: int, _frame: FrameType | None) -> None:
        # The terminal sends Ctrl-C to the harness as well.
        if process is not None and not (number == signal.SIGINT and _is_foreground()):
            process.send_signal(number)

    before = {number: signal.signal(number, forward_signal) for number in _FORWARDED_SIGNALS}
    try:
        process = subprocess.Popen(plan.command, env=environment)
        status = _wait_for_exit(process)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        remove_private_files(plan.files)  # they contain the address of our server, which stops
    return status if status >= 0 else 128 - status


def _wait_for_exit(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the exit. Stop this process when the harness stops (Ctrl-Z), for the shell to see.

    Stops are not handled on platforms that do not report them.
    """
    while hasattr(os, "waitid"):
        seen = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        if seen is None or seen.si_code != os.CLD_STOPPED:
            break
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        os.kill(os.getpid(), signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
    return process.wait()


def _is_foreground() -> bool:
    """Return whether the terminal sends Ctrl-C to this process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


#: Environment variable in which users store the API key of a server.
SHELL_KEY_VARIABLE = "DOVETAIL_API_KEY"
_SHELL_SPECIAL = re.compile(r"[\\$`]")


def to_shell_lines(plan: LaunchPlan, key: str | None) -> Iterator[str]:
    """Yield the plan as shell commands. The key is written as a variable reference."""
    if plan.unset_variables:
        yield f"unset {' '.join(plan.unset_variables)}"
    for name, value in plan.environment.items():
        shown = f'"${SHELL_KEY_VARIABLE}"' if key and value == key else shlex.quote(value)
        yield f"export {name}={shown}"
    for path, text in plan.files.items():
        yield from _to_heredoc(path, text, key)
    yield " ".join(shlex.quote(part) for part in plan.command)


def _to_heredoc(path: Path, text: str, key: str | None) -> Iterator[str]:
    end = "EOF"
    while end in text.splitlines():
        end += "_"
    quoted = f"'{end}'"
    encoded_key = json.dumps(key or "")[1:-1]  # files that contain a key are JSON
    if encoded_key and encoded_key in text:
        # The shell expands the key in the heredoc: escape everything else.
        parts = [_SHELL_SPECIAL.sub(r"\\\g<0>", part) for part in text.split(encoded_key)]
        text = f"${{{SHELL_KEY_VARIABLE}}}".join(parts)
        quoted = end
    folder, file = shlex.quote(str(path.parent)), shlex.quote(str(path))
    yield f"(umask 077; mkdir -p {folder}; cat > {file}) <<{quoted}"
    yield text.removesuffix("\n")
    yield end
