"""A real Redis Cluster of three primaries for tests, on loopback."""

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis_server import server_program

NODES = 3
SLOTS = 16384
_BUS_OFFSET = 10_000  # the port of the cluster bus, relative to that of clients
_START_SECONDS = 60.0


class RedisClusterServers:
    """Three servers, each with a third of the slots."""

    def __init__(self) -> None:
        self._program = server_program()
        self._folder = Path(tempfile.mkdtemp(prefix="dvt"))
        self.ports = [_free_port() for _ in range(NODES)]
        self.processes: list[subprocess.Popen[bytes]] = []
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.url = f"redis+cluster://{hosts}"

    def start(self) -> None:
        """Start the servers, join them, and wait until each knows all slots."""
        for port in self.ports:
            folder = self._folder / str(port)
            folder.mkdir()
            self.processes.append(self._start_node(port, folder))
        clients: list[Any] = [Redis(port=port) for port in self.ports]
        for client in clients:
            _wait(client.ping)
        for number, client in enumerate(clients):
            slots = range(SLOTS * number // NODES, SLOTS * (number + 1) // NODES)
            client.execute_command("CLUSTER ADDSLOTS", *slots)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for port in self.ports[1:]:
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", port)
        for client in clients:
            _wait(lambda client=client: _is_complete(client))
            client.close()

    def count_keys(self) -> list[int]:
        """Return the number of keys on each node."""
        counts = []
        for port in self.ports:
            with Redis(port=port) as client:
                counts.append(int(client.dbsize()))
        return counts

    def restart_node(self, number: int) -> None:
        """Restart a node without its data. It keeps its place in the cluster."""
        self.processes[number].kill()
        self.processes[number].wait()
        port = self.ports[number]
        self.processes[number] = self._start_node(port, self._folder / str(port))
        with Redis(port=port) as client:
            _wait(client.ping)
        for port in self.ports:
            with Redis(port=port) as client:
                _wait(lambda client=client: _is_complete(client))

    def remove(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start_node(self, port: int, folder: Path) -> "subprocess.Popen[bytes]":
        listen = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        cluster = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
        quiet = ["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]
        return subprocess.Popen(
            [self._program, *listen, *cluster, *quiet],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _is_complete(client: Any) -> bool:
    state = client.execute_command("CLUSTER INFO")
    text = state.decode() if isinstance(state, bytes) else str(state)
    return ("cluster_state:ok" in text or "'cluster_state': 'ok'" in text) and (
        f"cluster_known_nodes:{NODES}" in text or f"'cluster_known_nodes': '{NODES}'" in text
    )


def _wait(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except RedisConnectionError:
            pass
        time.sleep(0.05)
    pytest.fail("the Redis Cluster did not start")


def _free_port() -> int:
    """Return a port that is free together with its port of the cluster bus."""
    for _ in range(100):
        with socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            if port + _BUS_OFFSET > 65535:
                port -= 20_000
            try:
                bus.bind(("127.0.0.1", port + _BUS_OFFSET))
            except OSError:
                continue
            return port
    pytest.fail("no free ports for a Redis Cluster")
