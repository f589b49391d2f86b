"""`dovetail simulate` predicts the hit rate that real vLLM servers report for the same requests.

The server has the approximate index, which the simulator models. With KV events the difference was
larger than the limit of this test (docs/scale.md).
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_sessions import FLEET_BLOCKS, FleetCosts, SessionPlan, play
from kv_fleet import REAL, KvFleet, running_kv_fleet
from kv_replicas import BLOCK_TOKENS
from server_process import dovetail

pytestmark = REAL
MAX_DIFFERENCE = 0.02


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvFleet]:
    with running_kv_fleet(tmp_path_factory.mktemp("fleet"), FLEET_BLOCKS) as fleet:
        yield fleet


def test_simulated_hit_rate_is_near_the_measured_one(fleet: KvFleet, tmp_path: Path) -> None:
    with fleet.serve("server", *fleet.cache_flags) as server:
        play(server.running, SessionPlan("texts"))
    costs = FleetCosts(server.lines())
    cached_blocks = fleet.blocks - 1
    assert costs.prompt_tokens > 4 * cached_blocks * BLOCK_TOKENS  # more than fits
    requests = tmp_path / "requests.jsonl"
    converted = dovetail("trace", "mooncake", server.trace, "-o", requests, home=tmp_path)
    assert converted.status == 0, converted.err
    simulated = dovetail(
        *("simulate", requests, "--replicas", "2", "--blocks", str(cached_blocks)),
        *("--policy", "kv", "--cache-output", "--decode-ms", f"{costs.decode_seconds * 1000:.1f}"),
        *("--prefill-rate", f"{costs.prefill_rate:.0f}"),
        home=tmp_path,
    )
    found = re.search(r"^kv +([\d.]+)", simulated.out, re.M)
    assert found, simulated.out + simulated.err
    print(f"measured {costs.hit_rate:.3f}, simulated {found[1]}", simulated.out)
    assert abs(float(found[1]) - costs.hit_rate) <= MAX_DIFFERENCE
