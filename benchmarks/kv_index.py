"""How large are the indexes of KV caches, and what do their events and queries cost?

`python -m benchmarks.kv_index`: the approximate index in this process, and Dynamo's index in the
interpreter that has `dovetail[kv]`, fed by a publisher in the form of vLLM's KV events. It runs in
vLLM's interpreter, which has ZeroMQ. `make test-fleet` creates both in .cache.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = {name: ROOT / f".cache/{name}/venv/bin/python" for name in ("vllm", "kv")}
PORT, BLOCK_TOKENS, EVENT_BLOCKS = 25557, 16, 30  # an event is a turn of 480 new tokens
QUERY_BLOCKS, QUERIES = 5_000, 25  # a prompt of 80,000 tokens
_PAGE = 4096


def prompt(number: int) -> list[int]:
    dice = random.Random(number)
    return [dice.randrange(150_000) for _ in range(EVENT_BLOCKS * BLOCK_TOKENS)]


def publish(events: int) -> None:
    """Publish one stored prompt per event, when a line arrives on stdin."""
    import msgspec
    import zmq  # type: ignore[import-not-found]

    socket = zmq.Context().socket(zmq.PUB)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.bind(f"tcp://127.0.0.1:{PORT}")
    batches = []
    for number in range(events):
        first = number * EVENT_BLOCKS
        event = {
            "type": "BlockStored",
            "block_hashes": [first + at + 1 for at in range(EVENT_BLOCKS)],
            "parent_block_hash": None,
            "token_ids": prompt(number),
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": "GPU",
        }
        batches.append(msgspec.msgpack.encode([time.time(), [event], 0]))
    print("ready", flush=True)
    sys.stdin.readline()
    for number, batch in enumerate(batches):
        socket.send_multipart((b"", number.to_bytes(8, "big"), batch))
    sys.stdin.readline()


async def index(events: int) -> None:
    """Subscribe, and measure until the last event is in the index."""
    from dynamo.llm import SelectionService  # type: ignore[import-not-found]

    service = SelectionService(indexer_threads=1)
    worker = {"worker_id": 1, "model_name": "m", "endpoint": "x", "block_size": BLOCK_TOKENS}
    await service.upsert_worker({**worker, "kv_events_endpoints": {0: f"tcp://127.0.0.1:{PORT}"}})
    await asyncio.sleep(2.0)
    before, cpu, last = _resident(), time.process_time(), prompt(events - 1)
    print("ready", flush=True)
    began = time.monotonic()
    while True:
        found = await service.overlap_scores({"model_name": "m", "token_ids": last})
        if found["workers"] and found["workers"][0]["device_blocks"] == EVENT_BLOCKS:
            break
        await asyncio.sleep(0.02)
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    used = _resident() - before
    result = {"seconds": seconds, "cpu": cpu, "bytes": used, "query": await measure_query(service)}
    print(json.dumps(result), flush=True)


async def measure_query(service: Any) -> float:
    """Return the CPU time that a query of the server takes in the thread of its event loop."""
    sys.path[:0] = map(str, (ROOT / "packages").glob("*/src"))
    from dovetail.routing.block_hashes import DynamoHashes
    from dovetail.routing.kv_endpoints import KvEventAddress
    from dovetail.routing.kv_service import DynamoKvService

    server, dice = DynamoKvService(service), random.Random(1)
    await server.subscribe(2, KvEventAddress(f"tcp://127.0.0.1:{PORT}"), BLOCK_TOKENS)
    hashes = [dice.getrandbits(64) for _ in range(QUERY_BLOCKS)]
    times = []
    for _ in range(QUERIES):
        began = time.thread_time()
        await server.overlaps(DynamoHashes(hashes, hashes), QUERY_BLOCKS * BLOCK_TOKENS)
        times.append(time.thread_time() - began)
    return statistics.median(times)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def measure_events(events: int) -> dict[str, Any]:
    def start(environment: str, role: str) -> "subprocess.Popen[str]":
        command = [str(ENVIRONMENTS[environment]), __file__, "--role", role]
        return subprocess.Popen(
            [*command, "--events", str(events)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    with start("vllm", "publish") as publisher:
        assert publisher.stdout is not None
        assert publisher.stdin is not None
        publisher.stdout.readline()
        with start("kv", "index") as subscriber:
            assert subscriber.stdout is not None
            subscriber.stdout.readline()
            publisher.stdin.write("\n")
            publisher.stdin.flush()
            found: dict[str, Any] = json.loads(subscriber.stdout.readline())
        publisher.stdin.close()
    return found


def measure_approximate(blocks: int) -> float:
    """Return the bytes of a block in the approximate index."""
    from dovetail.routing.prefix_index import ApproximateIndex

    dice = random.Random(1)
    prompts = [[dice.getrandbits(64) for _ in range(100)] for _ in range(blocks // 100)]
    tracemalloc.start()
    index = ApproximateIndex(256, blocks)
    for hashes in prompts:
        index.record(0, [one + 0 for one in hashes])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(index)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=["publish", "index"])
    parser.add_argument("--events", type=int, default=10_000)
    options = parser.parse_args()
    if options.role == "publish":
        publish(options.events)
        return
    if options.role == "index":
        asyncio.run(index(options.events))
        return
    print(f"approximate index: {measure_approximate(200_000):.0f} bytes per block of 256 tokens")
    for events in (options.events // 2, options.events):
        found = measure_events(events)
        blocks = events * EVENT_BLOCKS
        print(
            f"index of KV events, {blocks:,} blocks of {BLOCK_TOKENS} tokens: "
            f"{found['bytes'] / blocks:.0f} bytes per block, {blocks / found['seconds']:,.0f} "
            f"blocks/s, {found['cpu'] / blocks * 1e6:.1f} us of CPU time per block; a query of "
            f"{QUERY_BLOCKS:,} blocks {found['query'] * 1e3:.1f} ms"
        )


if __name__ == "__main__":
    main()
