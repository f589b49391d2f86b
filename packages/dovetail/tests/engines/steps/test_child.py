"""An engine in a child process over the step protocol. The scripted engine takes vLLM's place."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from scripted_fixture import TOKENIZER, request
from step_fixture import CollectingSink, child_engine, import_path

from dovetail.engines.process import ProcessSpec
from dovetail.engines.steps.process import CHILD_SCRIPT, StepProcess
from dovetail.engines.token_stream import collect_token_ids
from dovetail.routing.pool import ReplicaPool
from dovetail_model import EngineUnavailable

QUICK = {"script": "[{text: hello}]"}
ENDLESS = {"script": "[{text: hello, hang: true}]"}


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def test_a_child_generates_and_stops() -> None:
    async def test() -> None:
        engine = child_engine(QUICK)
        await engine.start()
        assert engine.capabilities.local
        assert TOKENIZER.decode(await collect_token_ids(engine, request())).startswith("hello")
        assert (await engine.health()).facts is not None
        pid = engine.pid
        assert pid is not None
        await engine.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert not (await engine.health()).ready

    run(test())


def test_a_failed_load_is_one_line() -> None:
    async def test() -> None:
        engine = child_engine({"fail": "the weights are missing"})
        with pytest.raises(EngineUnavailable) as got:
            await engine.start()
        assert got.value.message == "the weights are missing"

    run(test())


def test_all_streams_of_a_killed_child_end_and_the_pool_restarts_it() -> None:
    async def test() -> None:
        engine = child_engine(ENDLESS)
        pool = ReplicaPool([engine])
        await pool.start()
        streams = [
            asyncio.create_task(pool.generate(request(), CollectingSink())) for _ in range(50)
        ]
        await asyncio.sleep(0.3)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        results = await asyncio.gather(*streams, return_exceptions=True)
        assert all("SIGKILL" in str(one) for one in results), results[:2]
        assert await pool.wait_available(30)
        assert (await pool.health()).ready
        await pool.stop()

    run(test())


def test_only_our_packages_are_found_in_the_folder_where_they_are_installed(tmp_path: Path) -> None:
    """What is installed next to them belongs to the server's interpreter."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "__init__.py").touch()
    (tmp_path / "ours" / "part.py").write_text("name = 'part'")
    (tmp_path / "theirs.py").touch()
    config = {"packages": {"ours": str(tmp_path / "ours")}, "engine": {}, "key": "k"}

    def load(module: str) -> str:
        """Return the error of a child that loads a module without the function `load`."""
        command = [sys.executable, "-P", str(CHILD_SCRIPT)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps({**config, "module": module}).encode() + b"\n")
            child.stdin.flush()  # the end of stdin would end the child
            return str(json.loads(child.stdout.readline())["error"])

    assert load("ours.part") == "module 'ours.part' has no attribute 'load'"
    assert load("theirs") == "No module named 'theirs'"


def test_an_interpreter_that_is_too_old_is_reported(tmp_path: Path) -> None:
    """It does not know the flag `-P`. The output is that of Python 3.10."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'Unknown option: -P' >&2\necho usage: >&2\nexit 2\n")
    program.chmod(0o755)
    spec = ProcessSpec("engine", (str(program), "-P", str(CHILD_SCRIPT)))
    with pytest.raises(EngineUnavailable, match=r"python is older than Python 3\.11"):
        asyncio.run(StepProcess(spec, "module").start({}))


def test_the_protocol_needs_only_msgspec_besides_our_own_packages() -> None:
    """An engine's interpreter has no dependency of the server, and the child imports none."""
    program = (
        "import sys; before = set(sys.modules); "
        "import dovetail.engines.steps.server, dovetail.engines.steps.messages; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    environment = {**os.environ, "PYTHONPATH": import_path()}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environment, capture_output=True, check=True
    )
    loaded = set(done.stdout.decode().split()) - sys.stdlib_module_names
    loaded.discard("typing_extensions")  # msgspec imports it where it is installed
    assert loaded == {"dovetail", "dovetail_model", "msgspec"}
