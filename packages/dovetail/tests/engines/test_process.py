"""Supervision of a child that serves, dies, is slow, prints garbage, is killed or is orphaned."""

import asyncio
import os
import select
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.engines.process import MAX_LOG_LINES, ChildProcess, PrivateSocket, ProcessSpec
from dovetail_model import EngineUnavailable

READY = 'print(json.dumps({"address": "unix:///s", "config": config}), flush=True)\n'
UNTIL_END = "sys.stdin.buffer.read()\n"
HEAD = "import json, os, signal, sys\nconfig = json.loads(sys.stdin.buffer.readline())\n"


def child(script: str, start_timeout: float = 60.0) -> ChildProcess:
    """Return a child that runs this script after it has read its config."""
    command = (sys.executable, "-S", "-c", HEAD + script)
    return ChildProcess(ProcessSpec("it", command, start_timeout=start_timeout))


def run_child(script: str, start_timeout: float = 60.0) -> tuple[dict[str, object], ChildProcess]:
    """Start a child, stop it, and return its response."""
    process = child(script, start_timeout)

    async def main() -> dict[str, object]:
        try:
            return await process.start({"what": "é"})
        finally:
            await process.stop()
            await process.stop()

    return asyncio.run(main()), process


def test_config_and_response_are_one_line_each() -> None:
    response, process = run_child(READY + UNTIL_END)
    assert response == {"address": "unix:///s", "config": {"what": "é"}}
    assert not process.alive
    assert process.describe_exit() == "it exited with status 0"


def test_killed_child_is_detected() -> None:
    process = child(READY + UNTIL_END)

    async def main() -> None:
        assert (process.alive, process.pid) == (False, None)
        assert await process.wait_for_exit(0.0)  # it was never started
        await process.start({})
        assert process.alive
        assert process.describe_exit() == "it does not respond"
        assert not await process.wait_for_exit(0.0)
        os.kill(process.pid or 0, signal.SIGKILL)
        assert await process.wait_for_exit(60.0)
        assert (
            process.describe_exit()
            == "it was killed by SIGKILL, possibly because the machine is out of memory"
        )
        await process.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("script", "response", "exit_text", "log"),
    [
        ("sys.exit('out of luck')", {}, "it exited with status 1", ["out of luck"]),
        ("os._exit(3)", {}, "it exited with status 3", []),
        ("os.kill(os.getpid(), signal.SIGSEGV)", {}, "it was terminated by signal 11", []),
        ("print(json.dumps({'error': 'no'}))", {"error": "no"}, "it exited with status 0", []),
        (
            "print('first', file=sys.stderr); print('{}'); sys.exit('last')",
            {},
            "it exited with status 1",
            ["first", "last"],
        ),
    ],
)
def test_exit_before_ready_is_described(
    script: str, response: dict[str, str], exit_text: str, log: list[str]
) -> None:
    received, process = run_child(script)
    assert received == response
    assert process.describe_exit() == exit_text
    assert list(process.log) == log


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('Hello!'); " + UNTIL_END, "not a JSON object: 'Hello!'"),
        ("print('[1]', flush=True); " + UNTIL_END, r"not a JSON object: '\[1\]'"),
        ("print('x' * 3_000_000, flush=True); " + UNTIL_END, "not a JSON object"),
        ("sys.stdout.buffer.write(b'\\xff\\n'); " + UNTIL_END, "not a JSON object"),
    ],
)
def test_invalid_response_is_an_error(script: str, message: str) -> None:
    with pytest.raises(EngineUnavailable, match=message):
        run_child(script)


def test_start_timeout() -> None:
    with pytest.raises(EngineUnavailable, match=r"not ready within 0\.01 s"):
        run_child(UNTIL_END, start_timeout=0.01)


def test_child_that_ignores_stdin_is_killed() -> None:
    process = child(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()", 0.5
    )

    async def main() -> None:
        with pytest.raises(EngineUnavailable, match="not ready"):
            await process.start({})
        assert not process.alive

    asyncio.run(main())


def test_missing_program_is_an_error() -> None:
    process = ChildProcess(ProcessSpec("it", ("/no/such/program",)))
    with pytest.raises(EngineUnavailable, match=r"cannot run /no/such/program \(No such file"):
        asyncio.run(process.start({}))


def test_cancelled_start_leaves_no_process() -> None:
    process = child(UNTIL_END)

    async def main() -> None:
        start = asyncio.create_task(process.start({}))
        while process.pid is None:  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not process.alive

    asyncio.run(main())


def test_log_is_drained_and_its_tail_retained() -> None:
    lines = MAX_LOG_LINES * 50
    noise = f"sys.stderr.write('y' * 3_000_000 + '\\n')\nfor n in range({lines}):\n"
    _, process = run_child(noise + "    sys.stderr.write(f'line {n}\\n')\nsys.exit(1)")
    assert list(process.log) == [f"line {n}" for n in range(lines - MAX_LOG_LINES, lines)]


def test_environment_is_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_OURS", "1")
    script = "import os, json\nprint(json.dumps({k: os.environ.get(k) for k in ('%s', '%s')}))"
    command = (sys.executable, "-S", "-c", script % ("DOVETAIL_OURS", "DOVETAIL_ADDED"))
    process = ChildProcess(ProcessSpec("it", command, environment={"DOVETAIL_ADDED": "2"}))
    assert asyncio.run(process.start({})) == {"DOVETAIL_OURS": "1", "DOVETAIL_ADDED": "2"}


PARENT = """
import asyncio, sys
from dovetail.engines.process import ChildProcess, ProcessSpec

async def main():
    process = ChildProcess(ProcessSpec("it", (sys.executable, "-S", "-c", sys.argv[1])))
    await process.start({})
    print(process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system has no pidfd_open")
def test_child_exits_when_its_parent_is_killed() -> None:
    command = [sys.executable, "-c", PARENT, HEAD + READY + UNTIL_END]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        orphan = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            parent.wait()
            ended, _, _ = select.select([orphan], [], [], 60.0)
            assert ended
        finally:
            os.close(orphan)


def test_socket_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = PrivateSocket()
    path = socket.create("s.sock")
    assert path is not None
    folder = Path(path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    socket.remove()
    socket.remove()
    assert not folder.exists()
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert socket.create("s.sock") is None
    socket.remove()
    assert not list(deep.iterdir())


@pytest.mark.parametrize("killed", [False, True])
def test_stop_does_not_wait_for_orphaned_grandchildren(killed: bool) -> None:
    """Grandchildren have the log open, so the log does not end when the child exits."""
    process = child(
        "import subprocess\n"
        'subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])\n'
        + READY
        + UNTIL_END
    )

    async def main() -> None:
        await process.start({})
        if killed:
            os.kill(process.pid or 0, signal.SIGKILL)
            assert await process.wait_for_exit(30)
        await asyncio.wait_for(process.stop(), 30)

    asyncio.run(main())
    assert not process.alive
