"""Exported sessions with a real vLLM contain its own ids and logprobs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logprob_sessions import APIS, EngineOutput, Session, check_samples, check_shown
from recording_proxy import Recorded, Recorder, recording
from server_process import Running, clean_environment, served
from typer.testing import CliRunner
from vllm_environment import NAME, REAL, Vllm, shared_vllm

from dovetail.cli.main import build_app

pytestmark = REAL


@pytest.fixture(scope="module")
def vllm(pytestconfig: pytest.Config) -> Vllm:
    return shared_vllm(pytestconfig)


@pytest.fixture(scope="module")
def recorder(vllm: Vllm) -> Iterator[Recorder]:
    with recording(vllm.port) as recorder:
        yield recorder


class Ran:
    """A server, and the folder of its ledger."""

    def __init__(self, running: Running, home: Path, recorder: Recorder) -> None:
        self.running = running
        self._home = home
        self._recorder = recorder

    def completions(self, session: str) -> list[Recorded]:
        return [
            one for one in self._recorder.completions if one.request.get("session_id") == session
        ]

    def export(self, session: str) -> list[dict[str, Any]]:
        done = CliRunner().invoke(
            build_app(), ["export", session], env=clean_environment(self._home)
        )
        assert done.exit_code == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module", params=["asked", "kept"])
def ran(
    request: pytest.FixtureRequest, recorder: Recorder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ran]:
    """Start servers that store logprobs only on request, and for all responses."""
    home = tmp_path_factory.mktemp("home")
    keep = ["--keep-logprobs"] if request.param == "kept" else []
    with served("--engine", "vllm", "--engine-url", recorder.url, *keep, home=home) as running:
        yield Ran(running, home, recorder)


@pytest.mark.parametrize("api", APIS)
def test_exported_logprobs_are_those_of_vllm(
    ran: Ran, api: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    shown = Session(ran.running.url, api, NAME, name).run()
    completions = ran.completions(name)
    outputs = [EngineOutput(one.prompt, one.generated, one.logprobs) for one in completions]
    assert [one.finish for one in completions] == ["length", "stop"]
    keeps = "kept" in name
    assert [one.request.get("logprobs") for one in completions] == [
        {"messages": 0 if keeps else None, "chat": 3, "responses": 0}[api]
    ] * 2
    known = keeps or api != "messages"
    assert [len(one.logprobs) for one in outputs] == [
        len(one.ids) if known else 0 for one in outputs
    ]
    check_samples(ran.export(name), outputs, known=known)
    check_shown(api, shown, outputs)
