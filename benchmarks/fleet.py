"""What do the routing policies cost on real replicas?

`python -m benchmarks.fleet`: two vLLM servers on the CPU with a tiny model and few KV blocks, and
the same agent sessions under each policy. Time to first token, cached tokens and re-prefilled
tokens come from the trace of the server. `make test-fleet` creates the environments in .cache.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "packages" / "dovetail" / "tests" / "support"))
os.environ.setdefault("DOVETAIL_VLLM_PYTHON", str(ROOT / ".cache/vllm/venv/bin/python"))
os.environ.setdefault("DOVETAIL_KV_PYTHON", str(ROOT / ".cache/kv/venv/bin/python"))

from agent_sessions import FLEET_BLOCKS, FleetCosts, SessionPlan, play  # noqa: E402 - in the folder above
from kv_fleet import KvFleet, running_kv_fleet  # noqa: E402

from benchmarks.frontend.cpu import load  # noqa: E402

#: The policies, and whether the server subscribes to KV events.
RUNS = {
    "kv with events": ("kv", True),
    "kv": ("kv", False),
    "session": ("session", False),
    "least-loaded": ("least-loaded", False),
    "round-robin": ("round-robin", False),
}


def run(fleet: KvFleet, name: str, plan: SessionPlan, number: int) -> FleetCosts:
    policy, has_events = RUNS[name]
    flags = [*fleet.cache_flags, *(fleet.events if has_events else [])]
    with fleet.serve(f"{number}-{policy}", "--routing-policy", policy, *flags) as server:
        if has_events:
            server.receive_events()
        warm = len(server.lines())
        play(server.running, plan)
    return FleetCosts(server.lines()[warm:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=48)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--layers", type=int, default=4, help="layers of the model")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", choices=RUNS, action="append")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stop the replicas, too
    with (
        tempfile.TemporaryDirectory(prefix="dvt") as folder,
        running_kv_fleet(Path(folder), FLEET_BLOCKS, options.layers) as fleet,
    ):
        print(
            "| policy | requests | hit rate | re-prefilled tokens | TTFT p50 | TTFT p99 | balance |"
        )
        print("|---|---:|---:|---:|---:|---:|---:|")
        for number in range(options.repeat):
            for name in options.only or RUNS:
                texts = f"{number} {name}"
                plan = SessionPlan(texts, options.sessions, options.clients, seed=7 + number)
                costs = run(fleet, name, plan, number * len(RUNS) + [*RUNS].index(name))
                print(
                    f"| {name} | {len(costs.lines)} | {costs.hit_rate:.3f} "
                    f"| {costs.reprefilled_tokens:,} | {costs.ttft(0.5):.2f} s "
                    f"| {costs.ttft(0.99):.2f} s | {costs.balance:.2f} |",
                    flush=True,
                )
    print(f"load {load()}")


if __name__ == "__main__":
    main()
