"""What an engine reports about itself becomes metrics, without health checks."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from scripted_fixture import request
from step_fixture import CollectingSink, SteppedEngine, served_at

from dovetail.engines.hosted import HostedEngine, HostedOptions, describe_hosted
from dovetail.http.collectors import ReplicaCollector
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool


def collected(pool: ReplicaPool) -> dict[str, float]:
    entry = TokenModel(("m",), cast(Any, None), cast(Any, None), pool)
    service = cast(ModelRegistry, SimpleNamespace(base_models=lambda: (entry,), fallbacks={}))
    return {
        sample.name: sample.value
        for family in ReplicaCollector(service).collect()
        for sample in family.samples
    }


def test_running_requests_are_reported_while_streams_run(tmp_path: Path) -> None:
    async def main() -> None:
        stepped = SteppedEngine()
        async with served_at(stepped, tmp_path) as address:
            options = HostedOptions(f"unix://{address.path}", address.key, describe_hosted(stepped))
            pool = ReplicaPool([HostedEngine(options)])
            await pool.start()
            stream = asyncio.create_task(pool.generate(request(), CollectingSink()))
            await stepped.wait_for(1)
            await pool.health()  # a report, without waiting for the next one
            found = collected(pool)
            assert found["dovetail_engine_requests_running"] == 1.0
            assert "dovetail_engine_kv_cache_usage" not in found  # this engine has none
            stepped.step(1, last=True)
            await stream
            await pool.stop()

    asyncio.run(asyncio.wait_for(main(), 30))
