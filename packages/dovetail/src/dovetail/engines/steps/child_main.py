"""The process of an engine: load a model and serve it over the step protocol.

It is run by its path, with an interpreter that has the engine but may not have Dovetail: the parent
passes the folders of Dovetail's packages. Input: one line of JSON on stdin: the module with the
function `load`, its configuration, and where to listen. Output: one line of JSON on stdout, the
`address` or an `error`. The process and its own child processes exit at the end of stdin, so they
never outlive the parent.

Engines start child processes that import this module again, so it imports only the standard
library and does nothing on import.
"""

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import spec_from_file_location
from typing import Any

BACKLOG = 128
EXIT_TIMEOUT_SECONDS = 3.0  # for the processes of the engine, after each signal
EXIT_POLL_SECONDS = 0.02
GC_THRESHOLD_OBJECTS = 10_000  # most objects of a stream are freed before that


def main() -> None:
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries goes to the log
    config = json.loads(sys.stdin.buffer.readline())
    sys.meta_path.insert(0, PackageFinder(config["packages"]))
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        engine = import_module(config["module"]).load(config["engine"])
        _run(_serve(config, engine, report))
    except Exception as fault:
        print(json.dumps({"error": f"{fault}" or type(fault).__name__}), file=report, flush=True)
        sys.stderr.flush()
        _exit(1)


class PackageFinder:
    """Finds the packages of Dovetail in the folders of the parent.

    The folder that contains them is not added to `sys.path`: what is installed there belongs
    to another interpreter.
    """

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return where a package is. Its modules are then found in it."""
        folder = self._folders.get(name)
        if folder is None:
            return None
        file = os.path.join(folder, "__init__.py")
        return spec_from_file_location(name, file, submodule_search_locations=[folder])


async def _serve(config: dict[str, Any], engine: Any, report: Any) -> None:
    from dovetail.engines.steps.server import StepServer

    await engine.start()
    listener, address = _open_listener(config)
    server = StepServer(engine, engine.describe(), config["key"], lambda: _exit(1))
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS)
    serving = await server.serve(listener, _tls_context(config))
    print(json.dumps({"address": address}), file=report, flush=True)
    report.close()
    await serving.serve_forever()


def _open_listener(config: dict[str, Any]) -> tuple[socket.socket, str]:
    if config.get("socket"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(config["socket"])
        os.chmod(config["socket"], 0o600)
        listener.listen(BACKLOG)
        return listener, f"unix://{config['socket']}"
    host = config.get("host") or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, config.get("port") or 0), family=family, backlog=BACKLOG)
    bound, port = listener.getsockname()[:2]
    scheme = "tls" if config.get("certificate") else "tcp"
    return listener, f"{scheme}://{f'[{bound}]' if ':' in bound else bound}:{port}"


def _tls_context(config: dict[str, Any]) -> Any:
    if not config.get("certificate"):
        return None
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config["certificate"], config.get("certificate_key"))
    return context


def _run(serving: Any) -> None:
    """Run the event loop: uvloop's if it is installed."""
    try:
        loop_factory = import_module("uvloop").new_event_loop
    except ModuleNotFoundError:
        loop_factory = None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(serving)


def _exit_with_parent() -> None:
    sys.stdin.buffer.read()
    _exit(0)


def _exit(status: int) -> None:
    """Exit at once, after ending all processes that the engine has started.

    The parent starts this process in a group of its own.
    """
    for sent in (signal.SIGTERM, signal.SIGKILL):  # the first lets them remove shared memory
        deadline = time.monotonic() + EXIT_TIMEOUT_SECONDS
        members = _group_members()
        for pid in members:
            with suppress(OSError):
                os.kill(pid, sent)
        while members and time.monotonic() < deadline:
            time.sleep(EXIT_POLL_SECONDS)
            members = _group_members()
    os._exit(status)


def _group_members() -> list[int]:
    """Return the other processes of this group that run. Without /proc, none are known."""
    if os.getpgrp() != os.getpid() or not os.path.isdir("/proc"):
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_member(int(name))]


def _is_member(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _, group = file.read().rpartition(b")")[2].split()[:3]
    except OSError:  # it has exited
        return False
    return int(group) == os.getpgrp() and state != b"Z"


if __name__ == "__main__":
    main()
