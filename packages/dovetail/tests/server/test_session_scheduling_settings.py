"""The settings of session scheduling: capacity, and combinations that are rejected."""

import asyncio
import logging

import pytest

from dovetail.routing.session_admission import SessionAdmission
from dovetail.server.build import build_service
from dovetail.server.engines import create_session_admission
from dovetail.settings.config import Config


def capacity(config: Config, reported: int | None = None) -> int | None:
    """Return the capacity of a replica whose engine reports a capacity."""

    async def scene() -> int | None:
        sessions = create_session_admission(config)
        assert sessions is not None
        sessions.add_replica(0, "vllm", reported)
        ((_, scheduler),) = sessions.schedulers()
        return scheduler.capacity_tokens

    return asyncio.run(scene())


def test_capacity_is_configured_or_reported_by_the_engine() -> None:
    auto = Config(session_scheduling="auto")
    assert create_session_admission(Config()) is None
    assert capacity(auto, 4096) == 4096
    blocks = Config(session_scheduling="auto", kv_blocks=100, kv_block_size=32)
    assert capacity(blocks, 4096) == 3200
    assert capacity(Config(session_scheduling="auto", kv_tokens=500, kv_blocks=1), 4096) == 500
    events = Config(session_scheduling="auto", kv_blocks=100, kv_events=("tcp://*:5557",))
    assert capacity(events, 4096) == 4096  # the replicas define the size of the blocks


def test_engine_without_a_known_capacity_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert capacity(Config(session_scheduling="auto")) is None
    (record,) = caplog.records
    assert record.getMessage() == "session_scheduling_disabled"
    assert "--kv-tokens" in vars(record)["fields"]["remedy"]


def test_combinations_without_effect_are_rejected() -> None:
    with pytest.raises(ValueError, match="requires --workers 1"):
        create_session_admission(Config(session_scheduling="auto", workers=2))
    config = Config(session_scheduling="auto", engine="openai", store="memory")
    with pytest.raises(ValueError, match="cannot be used with --engine openai"):
        build_service(config)


def test_maximum_wait_is_a_setting() -> None:
    sessions = create_session_admission(Config(session_scheduling="auto", session_max_wait=9.0))
    assert isinstance(sessions, SessionAdmission)
    sessions.add_replica(0, "vllm", 100)
    ((_, scheduler),) = sessions.schedulers()
    assert scheduler.limits.max_wait_seconds == 9.0
