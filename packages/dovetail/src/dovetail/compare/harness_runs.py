"""Run a harness without a terminal on one task, with its own home folder and a time limit."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import msgspec

from dovetail.compare.builtin_agent import KEY_VARIABLE, AgentArguments
from dovetail.compare.profiles import Profile
from dovetail.compare.task_set import CodingTask, CompareError
from dovetail.eval.client import APIS
from dovetail.launch.client_version import find_version, format_version
from dovetail.launch.codex import WEBSOCKET_API
from dovetail.launch.harnesses import HARNESSES
from dovetail.launch.plan import LaunchError, LaunchPlan, LaunchRequest, LaunchTarget
from dovetail.launch.private_files import write_private_files
from dovetail.launch.runner import build_proxy_bypass, find_executable

BUILTIN = "builtin"
_KILL_DELAY_SECONDS = 5.0
_KILL_ROUND_SECONDS = 0.05
_MAX_KILL_ROUNDS = 20  # a process may start others while it is ended
#: The arguments that run one prompt, without questions. The prompt follows them.
_PROMPT_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "claude": (
        *("--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"),
        "-p",
    ),
    "codex": (
        *("exec", "--json", "--skip-git-repo-check", "-c", "features.plugins=false"),
        "--dangerously-bypass-approvals-and-sandbox",
    ),
    "opencode": ("run", "--auto"),
    "pi": ("-p",),
}
HARNESS_NAMES = (*_PROMPT_ARGUMENTS, BUILTIN)
_QUIET_ENVIRONMENT = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DO_NOT_TRACK": "1",
    "IS_SANDBOX": "1",  # otherwise Claude Code refuses to run as root
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "PI_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True)
class HarnessProgram:
    """An installed harness, its version and the APIs that can be observed."""

    name: str
    executable: str
    version: str
    apis: tuple[str, ...]


@dataclass(frozen=True)
class HarnessRequest:
    """One run. `folder` is the scratch folder, in which `work` has the files of the task."""

    program: HarnessProgram
    profile: Profile
    target: LaunchTarget
    task: CodingTask
    folder: Path
    seed: int

    @property
    def work_dir(self) -> Path:
        return self.folder / "work"

    @property
    def home_dir(self) -> Path:
        return self.folder / "home"


@dataclass(frozen=True)
class HarnessResult:
    """How a harness ended. `status` is None if it exceeded the time limit."""

    status: int | None
    seconds: float


def find_program(name: str) -> HarnessProgram:
    """Find an installed harness. Raises CompareError."""
    if name == BUILTIN:
        return HarnessProgram(name, sys.executable, version("dovetail"), tuple(APIS))
    if name not in _PROMPT_ARGUMENTS:
        raise CompareError(f"--harness must be one of {', '.join(HARNESS_NAMES)}, got {name!r}")
    harness = HARNESSES[name]
    try:
        executable = find_executable(harness)
    except LaunchError as error:
        raise CompareError(str(error)) from error
    found = find_version(executable)
    apis = tuple(api for api in harness.apis if api != WEBSOCKET_API)
    return HarnessProgram(name, executable, format_version(found) if found else "unknown", apis)


def select_api(program: HarnessProgram, profile: Profile) -> str:
    """Return the API of a profile. Raises CompareError."""
    if profile.api is None:
        return program.apis[0]
    if profile.api not in program.apis:
        raise CompareError(
            f"`api` must be one of {', '.join(program.apis)} for {program.name}, "
            f"got {profile.api!r}"
        )
    return profile.api


def build_run_plan(request: HarnessRequest) -> LaunchPlan:
    """Build the command, environment and files of a run."""
    if request.program.name == BUILTIN:
        return _build_builtin_plan(request)
    prompt_arguments = _PROMPT_ARGUMENTS[request.program.name]
    arguments = (*prompt_arguments, *request.profile.arguments, request.task.instructions)
    if prompt_arguments[-1] == "-p":  # the prompt must follow it
        arguments = (
            *prompt_arguments[:-1],
            *request.profile.arguments,
            "-p",
            request.task.instructions,
        )
    target = request.target
    if not request.profile.catalog:
        target = replace(target, catalog=None)
    launch = LaunchRequest(
        target,
        select_api(request.program, request.profile),
        arguments,
        request.program.executable,
        request.folder / "launch",
        build_proxy_bypass(target.address, os.environ),
    )
    return HARNESSES[request.program.name].prepare_plan(launch)


async def run_harness(request: HarnessRequest, log_path: Path) -> HarnessResult:
    """Run a harness to its end or its time limit. Its output goes to the log file."""
    plan = build_run_plan(request)
    request.home_dir.mkdir()
    write_private_files(plan.files)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(request.home_dir),
        "TMPDIR": str(request.folder),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        **_QUIET_ENVIRONMENT,
        **plan.environment,
        **request.profile.environment,
    }
    clock = asyncio.get_running_loop().time
    with log_path.open("wb") as log:
        started = clock()
        process = await asyncio.create_subprocess_exec(
            *plan.command,
            cwd=request.work_dir,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(request.task.timeout_seconds):
                status: int | None = await process.wait()
        except TimeoutError:
            status = None
        finally:
            seconds = clock() - started
            await asyncio.shield(_end_processes(process, request.folder))
        return HarnessResult(status, seconds)


async def _end_processes(process: asyncio.subprocess.Process, folder: Path) -> None:
    """End the harness and the commands that it started, also those in sessions of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            async with asyncio.timeout(_KILL_DELAY_SECONDS):
                await process.wait()
        except TimeoutError:
            continue
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for _ in range(_MAX_KILL_ROUNDS):
        left = _find_processes(folder)
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        await asyncio.sleep(_KILL_ROUND_SECONDS)


def _find_processes(folder: Path) -> list[int]:
    """Return the processes whose environment names the scratch folder of a run. Linux only."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if os.fsencode(folder) in environ.read_bytes():
                found.append(int(environ.parent.name))
    return found


def _build_builtin_plan(request: HarnessRequest) -> LaunchPlan:
    target, profile = request.target, request.profile
    arguments = AgentArguments(
        url=target.address,
        model=target.model,
        api=select_api(request.program, profile),
        prompt=request.task.instructions,
        session=request.folder.name,
        seed=request.seed,
        max_requests=profile.max_requests,
        max_output_chars=profile.max_output_chars,
        follow_up=profile.follow_up,
    )
    module = ("-P", "-m", "dovetail.compare.builtin_agent")
    command = (request.program.executable, *module, msgspec.json.encode(arguments).decode())
    return LaunchPlan(command, {KEY_VARIABLE: target.key} if target.key else {})


def remove_folder(folder: Path) -> None:
    """Remove a scratch folder, also if a task has withdrawn permissions in it."""
    with suppress(OSError):
        folder.chmod(0o700)
    for parent, names, _ in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
