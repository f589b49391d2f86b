"""Supervision of a child: one that serves, dies, dawdles, prints rubbish, is killed, orphaned."""

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

READY = 'print(json.dumps({"address": "unix:///s", "heard": order}), flush=True)\n'
UNTIL_END = "sys.stdin.buffer.read()\n"
HEAD = "import json, os, signal, sys\norder = json.loads(sys.stdin.buffer.readline())\n"


def child(script: str, patience: float = 60.0) -> ChildProcess:
    """A child that runs this once it has its order."""
    command = (sys.executable, "-S", "-c", HEAD + script)
    return ChildProcess(ProcessSpec("it", command, start_timeout=patience))


def play(script: str, patience: float = 60.0) -> tuple[dict[str, object], ChildProcess]:
    """What a child answers, after which it is stopped."""
    made = child(script, patience)

    async def main() -> dict[str, object]:
        try:
            return await made.start({"what": "é"})
        finally:
            await made.stop()
            await made.stop()

    return asyncio.run(main()), made


def test_one_line_in_and_one_line_out() -> None:
    answer, made = play(READY + UNTIL_END)
    assert answer == {"address": "unix:///s", "heard": {"what": "é"}}
    assert not made.alive
    assert made.describe_exit() == "it ended (0)"


def test_life_and_death() -> None:
    made = child(READY + UNTIL_END)

    async def main() -> None:
        assert (made.alive, made.pid) == (False, None)
        assert await made.wait_for_exit(0.0)  # it never began
        await made.start({})
        assert made.alive
        assert made.describe_exit() == "it does not answer"
        assert not await made.wait_for_exit(0.0)
        os.kill(made.pid or 0, signal.SIGKILL)
        assert await made.wait_for_exit(60.0)
        assert made.describe_exit() == "it was killed, perhaps because memory ran out"
        await made.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("script", "answer", "epitaph", "log"),
    [
        ("sys.exit('out of luck')", {}, "it ended (1)", ["out of luck"]),
        ("os._exit(3)", {}, "it ended (3)", []),
        ("os.kill(os.getpid(), signal.SIGSEGV)", {}, "it died with signal 11", []),
        ("print(json.dumps({'error': 'no'}))", {"error": "no"}, "it ended (0)", []),
        (
            "print('first', file=sys.stderr); print('{}'); sys.exit('last')",
            {},
            "it ended (1)",
            ["first", "last"],
        ),
    ],
)
def test_last_words(script: str, answer: dict[str, str], epitaph: str, log: list[str]) -> None:
    heard, made = play(script)
    assert heard == answer
    assert made.describe_exit() == epitaph
    assert list(made.log) == log


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('Hello!'); " + UNTIL_END, "not understood: 'Hello!'"),
        ("print('[1]', flush=True); " + UNTIL_END, r"not understood: '\[1\]'"),
        ("print('x' * 3_000_000, flush=True); " + UNTIL_END, "not understood"),
        ("sys.stdout.buffer.write(b'\\xff\\n'); " + UNTIL_END, "not understood"),
    ],
)
def test_rubbish(script: str, message: str) -> None:
    with pytest.raises(EngineUnavailable, match=message):
        play(script)


def test_too_slow() -> None:
    with pytest.raises(EngineUnavailable, match=r"not ready in 0\.01 s"):
        play(UNTIL_END, patience=0.01)


def test_a_child_that_will_not_listen_is_killed() -> None:
    made = child("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()", 0.5)

    async def main() -> None:
        with pytest.raises(EngineUnavailable, match="not ready"):
            await made.start({})
        assert not made.alive

    asyncio.run(main())


def test_no_such_program() -> None:
    made = ChildProcess(ProcessSpec("it", ("/no/such/program",)))
    with pytest.raises(EngineUnavailable, match=r"cannot run /no/such/program \(No such file"):
        asyncio.run(made.start({}))


def test_a_start_that_is_given_up_leaves_no_process() -> None:
    made = child(UNTIL_END)

    async def main() -> None:
        start = asyncio.create_task(made.start({}))
        while made.pid is None:  # noqa: ASYNC110 (nothing tells that it is there)
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not made.alive

    asyncio.run(main())


def test_the_log_is_read_to_its_end_and_its_tail_is_kept() -> None:
    lines = MAX_LOG_LINES * 50
    noise = f"sys.stderr.write('y' * 3_000_000 + '\\n')\nfor n in range({lines}):\n"
    _, made = play(noise + "    sys.stderr.write(f'line {n}\\n')\nsys.exit(1)")
    assert list(made.log) == [f"line {n}" for n in range(lines - MAX_LOG_LINES, lines)]


def test_the_environment_is_ours_and_what_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_OURS", "1")
    script = "import os, json\nprint(json.dumps({k: os.environ.get(k) for k in ('%s', '%s')}))"
    command = (sys.executable, "-S", "-c", script % ("DOVETAIL_OURS", "DOVETAIL_ADDED"))
    made = ChildProcess(ProcessSpec("it", command, environment={"DOVETAIL_ADDED": "2"}))
    assert asyncio.run(made.start({})) == {"DOVETAIL_OURS": "1", "DOVETAIL_ADDED": "2"}


PARENT = """
import asyncio, sys
from dovetail.engines.process import ChildProcess, Launch

async def main():
    made = ChildProcess(Launch("it", (sys.executable, "-S", "-c", sys.argv[1])))
    await made.start({})
    print(made.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system has no pidfd_open")
def test_a_child_does_not_outlive_a_parent_that_was_killed() -> None:
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


def test_the_socket_lies_where_only_we_can_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_helper_that_the_child_left_behind_holds_nobody_up(killed: bool) -> None:
    """It has the log open, so the log does not end when the child does."""
    made = child(
        "import subprocess\n"
        'subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])\n'
        + READY
        + UNTIL_END
    )

    async def main() -> None:
        await made.start({})
        if killed:
            os.kill(made.pid or 0, signal.SIGKILL)
            assert await made.wait_for_exit(30)
        await asyncio.wait_for(made.stop(), 30)

    asyncio.run(main())
    assert not made.alive
