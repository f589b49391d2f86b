"""Tool loops over HTTP, as harnesses run them. The engine's cached tokens show what was exact."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM
from typing import Any, NamedTuple

import pytest
from agent_clients import AGENTS, Agent, ClaudeCode, Codex, MessagesAgent, OpenClaw, read
from server_process import NAME, Reply, Running, qwen_folder, served

STEPS = 6
BLOCK = 16  # tokens per block in the scripted engine's cache


class Used(NamedTuple):
    """The usage that a response reports. `prompt` includes the cached tokens."""

    prompt: int
    generated: int
    cached: int

    @property
    def cached_after(self) -> int:
        """Return what an engine can cache in complete blocks: all but the token sampled last."""
        return (self.prompt + self.generated - 1) // BLOCK * BLOCK


def _coder(command: str) -> str:
    return (
        "<tool_call>\n<function=run_command>\n"
        f"<parameter=command>\n{command}\n</parameter>\n<parameter=timeout>\n10.0\n</parameter>\n"
        "</function>\n</tool_call>"
    )


def _hermes(command: str) -> str:
    arguments = {"timeout": 10.0, "command": command}
    return (
        f"<tool_call>\n{json.dumps({'name': 'run_command', 'arguments': arguments})}\n</tool_call>"
    )


CALLS = {"qwen3_coder": _coder, "hermes": _hermes}


def _script(folder: Path, parser: str) -> Path:
    """Five calls, each after reasoning, and a final message."""
    call = CALLS[parser]
    turns = [
        f"<think>\nStep {at}: e\u0301, 漢字, 🦜.\n</think>\n\nI look.\n\n"
        + call(f"cd /repo && ls {at} ")
        for at in range(STEPS - 1)
    ]
    path = folder / f"{parser}.yaml"
    outputs = [*turns, "<think>\nThat is all.\n</think>\n\nThe answer is 42."]
    path.write_text(json.dumps({"turns": [{"text": text} for text in outputs], "end": "fail"}))
    return path


def _arguments(folder: Path, parser: str) -> list[str | Path]:
    """The arguments of the scripted server, with a model name that the agents expect."""
    model = folder / "model"
    return [
        *(model if model.is_dir() else qwen_folder(model), "--engine", "scripted"),
        *("--script", _script(folder, parser), "--served-model-name", NAME),
        *("--tool-call-parser", parser, "--reasoning-parser", "qwen3"),
        *("--http-host", "127.0.0.1", "--model-alias", f"m={NAME}"),
    ]


@pytest.fixture(scope="module", params=list(CALLS))
def server(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Running]:
    with served(*_arguments(tmp_path_factory.mktemp("sessions"), request.param)) as running:
        yield running


@pytest.mark.parametrize("kind", AGENTS, ids=lambda kind: kind.name)
def test_every_step_of_a_tool_loop_is_a_full_prefix_cache_hit(
    server: Running, kind: type[Agent]
) -> None:
    agent = _agent(kind)
    used = [_step(server, agent, at)[1] for at in range(STEPS)]
    assert [later.cached for later in used[1:]] == [before.cached_after for before in used[:-1]]
    assert used[0].cached < BLOCK * 2  # of another agent's session, at most the head
    assert used[-1].prompt > used[0].prompt + STEPS * BLOCK


@pytest.mark.parametrize(
    "kind",
    [ClaudeCode, *(pytest.param(kind, marks=pytest.mark.long) for kind in (Codex, OpenClaw))],
    ids=lambda kind: kind.name,
)
def test_session_continues_exactly_after_a_restart(tmp_path: Path, kind: type[Agent]) -> None:
    agent, home = _agent(kind), tmp_path / "home"
    with served(*_arguments(tmp_path, "qwen3_coder"), home=home) as running:
        used = [_step(running, agent, at)[1] for at in range(3)]
        assert running.stop() == -SIGTERM
    with served(*_arguments(tmp_path, "qwen3_coder"), home=home) as running:
        reply, again = _step(running, agent, 3)
        assert again.cached == 0  # the engine's cache is empty
        # The ledger is not: the prompt contains all earlier turns, token for token.
        before = used[2].prompt + used[2].generated - 1
        assert int(reply.headers["x-dovetail-prefix-common"]) == before
        assert "x-dovetail-prefix-reason" not in reply.headers
        assert again.prompt - used[2].prompt == used[2].prompt - used[1].prompt
        assert _replayed(running) == {"exact": 1, "written": 0, "natural": 0}
        _, after = _step(running, agent, 4)
        assert after.cached == again.cached_after


@pytest.mark.long
def test_prompt_has_the_same_ids_after_a_restart(tmp_path: Path) -> None:
    """Both servers tokenize the conversation."""
    agent, home, prompts = _agent(OpenClaw), tmp_path / "home", []
    with served(*_arguments(tmp_path, "hermes"), home=home) as running:
        for at in range(3):
            _step(running, agent, at)
        prompts.append(running.post("/tokenize", agent.body())["tokens"])
    with served(*_arguments(tmp_path, "hermes"), home=home) as running:
        prompts.append(running.post("/tokenize", agent.body())["tokens"])
    with served(*_arguments(tmp_path, "hermes")) as stranger:
        other = stranger.post("/tokenize", agent.body())["tokens"]
    assert prompts[0] == prompts[1]
    assert prompts[0] != other  # without the ledger, turns get other tokens


def _agent(kind: type[Agent]) -> Agent:
    """Each agent has different texts, because the engine's cache is shared."""
    agent = kind(session=f"session of {kind.name}", system=f"{kind.name} is who you are.")
    agent.add_user_message("What is the answer?")
    return agent


def _step(running: Running, agent: Agent, at: int) -> tuple[Reply, Used]:
    body = agent.body()
    if "messages" in body and not isinstance(agent, MessagesAgent):
        body["stream_options"] = {"include_usage": True}
    headers = {name.replace("-", "_"): value for name, value in agent.headers.items()}
    path = _PATHS[agent.codec.call_id_prefix, "input" in body]
    reply = running.request("POST", path, body, **headers, x_dovetail_debug="prefix")
    assert reply.status == 200, reply.body
    calls = agent.receive(reply.body)
    assert len(calls) == (1 if at < STEPS - 1 else 0)
    agent.add_results([(call, f"file {at}.txt") for call in calls])
    return reply, _used(reply.body)


_PATHS = {
    ("toolu_", False): "/v1/messages?beta=true",
    ("call_", True): "/v1/responses",
    ("call_", False): "/v1/chat/completions",
}


def _used(frames: bytes) -> Used:
    """Return the last usage in a stream of any API."""
    found: list[Used] = []
    for event in read(frames):
        usage = event.get("usage") or event.get("response", {}).get("usage")
        if usage is None:
            continue
        if "cache_read_input_tokens" in usage:
            cached = usage["cache_read_input_tokens"]
            found.append(Used(usage["input_tokens"] + cached, usage["output_tokens"], cached))
        elif "input_tokens" in usage:
            cached = usage["input_tokens_details"]["cached_tokens"]
            found.append(Used(usage["input_tokens"], usage["output_tokens"], cached))
        else:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            found.append(Used(usage["prompt_tokens"], usage["completion_tokens"], cached))
    return found[-1]


def _replayed(running: Running) -> dict[str, int]:
    """How earlier turns were rendered in the prompts so far, according to the server's metrics."""
    metrics = running.request("GET", "/metrics").body.decode()
    found = re.findall(r'replayed_turns_total{kind="(\w+)".*} (\d+)', metrics)
    return {kind: int(count) for kind, count in found}
