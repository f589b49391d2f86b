"""Stores that fail under a running server: full disks, lost files, Redis away or frozen."""

import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from redis_server import RedisServer
from server_process import NAME, Running
from tools.attacks.live.servers import GENERATION_BODIES, serving
from tools.attacks.scenario import Effort, Outcome, judge

MAX_EXTRA_SECONDS = 5.0  # of one request, compared with those before the first failure
FILES = ("turns.sqlite", "responses.sqlite")


class StoreAttack:
    """A server, the requests that are sent to it after each failure, and what went wrong."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.wrong: list[str] = []
        self.requests = 0
        self.slowest = 0.0
        self.check("at first")
        self.baseline, self.slowest = self.slowest, 0.0

    def check(self, step: str) -> None:
        """Send a request to each API, and fetch the response that was stored."""
        for path, body in GENERATION_BODIES.items():
            status, stored = self._post(path, {"model": NAME, **body})
            if status != 200:
                self.wrong.append(f"{step}: {path} returned {status}")
            elif path == "/v1/responses":
                reply = self.running.request("GET", f"{path}/{stored}")
                if reply.status not in (200, 404, 503):
                    self.wrong.append(f"{step}: GET of a response returned {reply.status}")
        if self.running.process.poll() is not None:
            self.wrong.append(f"{step}: the server exited")

    def _post(self, path: str, body: dict[str, object]) -> tuple[int, str]:
        started = time.monotonic()
        reply = self.running.request("POST", path, body)
        self.slowest = max(self.slowest, time.monotonic() - started)
        self.requests += 1
        return reply.status, reply.json.get("id", "")

    def outcome(self, failures: int) -> Outcome:
        log = self.running.log.read_text()
        tracebacks = log.count("Traceback")
        return judge(
            {"wrong": 0, "tracebacks": 0, "extra_ms": MAX_EXTRA_SECONDS * 1000},
            "\n".join(self.wrong) + "\n" + log[-4000:],
            failures=failures,
            requests=self.requests,
            wrong=len(self.wrong),
            tracebacks=tracebacks,
            baseline_ms=round(self.baseline * 1000),
            extra_ms=round((self.slowest - self.baseline) * 1000),
        )


def sqlite_failures(effort: Effort) -> Outcome:
    """Files of the stores are deleted, replaced, truncated, or cannot grow."""
    with TemporaryDirectory(prefix="dovetail-data-") as folder:
        data = Path(folder) / "data"
        with serving("Fine.", "--data-dir", data) as running:
            attack = StoreAttack(running)
            steps = _file_failures(data, running.process.pid)
            for name, act in steps.items():
                act()
                attack.check(name)
                time.sleep(0.3)
            return attack.outcome(len(steps))


def _file_failures(data: Path, pid: int) -> dict[str, Callable[[], object]]:
    paths = [data / name for name in FILES]

    def limit(size: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def each(act: Callable[[Path], object]) -> Callable[[], object]:
        return lambda: [act(path) for path in paths if path.exists()]

    def replace(path: Path) -> None:
        path.unlink()
        path.write_bytes(b"not a database" * 1000)

    return {
        "full disk": lambda: limit(4096),
        "room again": lambda: limit(resource.RLIM_INFINITY),
        "logs deleted": lambda: list(map(Path.unlink, data.glob("*.sqlite-*"))),
        "files truncated": each(lambda path: path.write_bytes(b"")),
        "files deleted": each(Path.unlink),
        "files replaced": each(replace),
        "bytes overwritten": each(lambda path: path.write_bytes(b"\xff" * 8192)),
        "folder moved away": lambda: shutil.move(data, data.with_name("moved")),
        "folder is empty": lambda: data.mkdir(exist_ok=True),
    }


def redis_failures(effort: Effort) -> Outcome:
    """Redis is killed, frozen, and returns, several times."""
    redis = RedisServer()
    redis.start()
    try:
        with serving("Fine.", "--store", redis.url) as running:
            attack = StoreAttack(running)
            for _ in range(effort.scale(2, 1)):
                assert redis.process is not None
                redis.process.send_signal(signal.SIGSTOP)
                attack.check("frozen")
                redis.process.send_signal(signal.SIGCONT)
                attack.check("resumed")
                redis.stop()
                attack.check("killed")
                redis.start()
                attack.check("restarted")
            return attack.outcome(4 * effort.scale(2, 1))
    finally:
        redis.remove()
