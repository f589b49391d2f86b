"""Read the KV events that a vLLM server has published, with the interpreter that has ZeroMQ."""

import base64
import json
import os
import subprocess
from typing import Any

from vllm_environment import PYTHON

#: Requests the replay of all events and prints one JSON list per line; bytes become base64.
_PROGRAM = """
import base64, json, sys
import msgspec, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.setsockopt(zmq.RCVTIMEO, 30_000)
socket.connect(sys.argv[1])
socket.send_multipart([b"", (0).to_bytes(8, "big")])
end = (-1).to_bytes(8, "big", signed=True)
while True:
    _, topic, seq, payload = socket.recv_multipart()
    if seq == end:
        break
    batch = msgspec.msgpack.decode(payload)
    default = lambda value: {"bytes": base64.b64encode(value).decode()}
    print(json.dumps(batch[1], default=default))
"""


def kv_events_flags(port: int, replay_port: int) -> tuple[str, str]:
    """Return the flags of a vLLM server that publishes its KV events."""
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port}",  # without a wildcard vLLM would connect
        "replay_endpoint": f"tcp://*:{replay_port}",
    }
    return "--kv-events-config", json.dumps(config)


def read_kv_events(replay_port: int) -> list[dict[str, Any]]:
    """Return all events that a server has published, from its replay buffer."""
    command = [os.environ[PYTHON], "-c", _PROGRAM, f"tcp://127.0.0.1:{replay_port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [event for line in done.stdout.splitlines() for event in json.loads(line)]


def stored_hashes(events: list[dict[str, Any]]) -> dict[Any, int]:
    """Return the hashes of all stored blocks with the number of tokens up to their end."""
    found: dict[Any, int] = {}
    for event in events:
        if event["type"] != "BlockStored":
            continue
        parent = event["parent_block_hash"]
        length = 0 if parent is None else found[_hash_key(parent)]
        for one in event["block_hashes"]:
            length += event["block_size"]
            found[_hash_key(one)] = length
    return found


def _hash_key(value: Any) -> int | str:
    """Return a hash as an integer, or as hexadecimal digits if the event has bytes."""
    if isinstance(value, dict):
        return base64.b64decode(value["bytes"]).hex()
    assert isinstance(value, int)
    return value
