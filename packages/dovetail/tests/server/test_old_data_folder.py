"""A data folder and a trace of an older Dovetail: the current server and commands read them.

The recording was made in November 2026, before the packages were restructured, with `dovetail
serve --engine scripted --data-dir data --trace-file trace.jsonl --engine-option record=record`. Two
requests in each of two APIs: a tool call, then a final response. `sent.json` has the requests and
responses, `record` the prompts and the output of the engine.
"""

import json
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from server_process import NAME, Running, dovetail, qwen_folder, served

from dovetail.telemetry.trace.reader import read_traces

RECORDED = Path(__file__).parents[1] / "support" / "recordings" / "data_folder_2026_11.tar.gz"
SESSION = "old-session"
REASONING = "Look at the folder first: é 漢字."


class Recording(NamedTuple):
    """The unpacked recording. `exchanges` and `generations` are in chronological order."""

    folder: Path
    exchanges: dict[str, dict[str, Any]]
    generations: list[dict[str, Any]]

    def turn_ids(self, number: int) -> list[int]:
        """The token ids of a generation: the prompt and the output."""
        ids: list[int] = [*self.generations[number]["prompt"], *self.generations[number]["output"]]
        return ids


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return unpack(tmp_path_factory.mktemp("recording"))


def unpack(folder: Path) -> Recording:
    with tarfile.open(RECORDED) as packed:
        packed.extractall(folder, filter="data")
    for name, table in (("turns", "entries"), ("responses", "responses")):
        _renew(folder / "data" / f"{name}.sqlite", table)
    return Recording(
        folder,
        json.loads((folder / "sent.json").read_text()),
        read_lines(folder / "record"),
    )


def _renew(path: Path, table: str) -> None:
    """Set the last use to now: turns expire a week after it, responses after a month."""
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(f"UPDATE {table} SET used = ?", (time.time(),))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Upgraded(NamedTuple):
    """A current server on the old data folder. `log` is the file with the prompts of its engine."""

    running: Running
    log: Path

    def last(self) -> dict[str, Any]:
        """The last prompt of the engine."""
        return read_lines(self.log)[-1]

    def continues(self, before: list[int]) -> bool:
        """Whether the last prompt starts with these tokens: none of them is re-prefilled."""
        prompt = self.last()["prompt"]
        return len(prompt) > len(before) and prompt[: len(before)] == before


@pytest.fixture(scope="module")
def upgraded(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgraded]:
    with _upgrade(recording, tmp_path_factory.mktemp("upgraded")) as server:
        yield server


@contextmanager
def _upgrade(recording: Recording, scratch: Path) -> Iterator[Upgraded]:
    log = scratch / "record"
    with served(
        *(qwen_folder(scratch / "model"), "--engine", "scripted"),
        *("--script", recording.folder / "script.yaml", "--served-model-name", NAME),
        *("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
        *("--data-dir", recording.folder / "data", "--engine-option", f"record={log}"),
    ) as running:
        yield Upgraded(running, log)


def test_stored_response_is_still_found(recording: Recording, upgraded: Upgraded) -> None:
    for name in ("responses_1", "responses_2"):
        response = recording.exchanges[name]["response"]
        reply = upgraded.running.request("GET", f"/v1/responses/{response['id']}")
        assert (reply.status, reply.json) == (200, response)


def test_chain_of_responses_continues_from_the_exact_tokens(
    recording: Recording, upgraded: Upgraded
) -> None:
    request = recording.exchanges["responses_2"]["request"]
    output = {**request["input"][0], "output": "c.txt"}
    reply = upgraded.running.post("/v1/responses", {**request, "input": [output]})
    assert reply["previous_response_id"] == request["previous_response_id"]
    assert upgraded.continues(recording.turn_ids(2))


def test_user_turn_continues_a_complete_chain(recording: Recording, upgraded: Upgraded) -> None:
    """The template drops the reasoning of earlier turns, and the tokens of that reasoning."""
    before = recording.exchanges["responses_2"]
    request = {**before["request"], "input": "And now?"}
    request["previous_response_id"] = before["response"]["id"]
    assert upgraded.running.post("/v1/responses", request)["status"] == "completed"
    prompt = upgraded.last()["text"]
    assert "a.txt\nb.txt" in prompt
    assert "There are two files.<|im_end|>\n<|im_start|>user\nAnd now?" in prompt


def _without_reasoning(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [block for block in content if block["type"] != "thinking"]


def _with_empty_reasoning(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, "thinking": ""} if one["type"] == "thinking" else one for one in content]


@pytest.mark.parametrize("change", [list, _without_reasoning, _with_empty_reasoning])
def test_session_continues_from_the_exact_tokens(
    recording: Recording, upgraded: Upgraded, change: Any
) -> None:
    """Handles identify old turns. Old chains are unknown, since digests cover more than before.

    Therefore the prompt is built again from the tokens of its turns, and is the same.
    """
    request = _continue_session(recording, change)
    reply = upgraded.running.request(
        "POST", "/v1/messages", request, x_claude_code_session_id=SESSION, x_dovetail_debug="prefix"
    )
    assert reply.status == 200, reply.body
    assert upgraded.continues(recording.turn_ids(0))
    assert reply.headers.get("x-dovetail-prefix-reason") in (None, "first")


def test_old_signature_is_opened_if_the_turns_are_missing(tmp_path: Path) -> None:
    recording = unpack(tmp_path / "recording")
    (recording.folder / "data" / "turns.sqlite").unlink()
    request = _continue_session(recording, _with_empty_reasoning)
    with _upgrade(recording, tmp_path) as upgraded:
        upgraded.running.post("/v1/messages", request)
        assert REASONING in upgraded.last()["text"]


def _continue_session(recording: Recording, change: Any) -> dict[str, Any]:
    """Send the second request of the old session, with another tool result."""
    request: dict[str, Any] = recording.exchanges["messages_2"]["request"]
    question, turn, results = request["messages"]
    result = {**results["content"][0], "content": "c.txt"}
    history = [question, {**turn, "content": change(turn["content"])}]
    return {**request, "messages": [*history, {"role": "user", "content": [result]}]}


def test_old_trace_is_read(recording: Recording) -> None:
    trace = read_traces([recording.folder / "trace.jsonl"])
    assert (len(trace.lines), trace.skipped_lines) == (5, 0)
    first, second = trace.select(SESSION).lines
    assert (first.finish, second.finish) == ("tool_calls", "stop")
    assert [call.name for call in first.calls] == ["run_command"]
    (wait, _) = trace.tool_waits()
    assert (wait.line.id, wait.result_line.id) == (first.id, second.id)


def test_trace_commands_read_an_old_trace(recording: Recording, tmp_path: Path) -> None:
    trace = recording.folder / "trace.jsonl"
    summary = dovetail("trace", "summary", trace, home=tmp_path)
    assert (summary.status, summary.err) == (0, "")
    assert f"session {SESSION} " in summary.out
    timeline = dovetail("trace", "perfetto", trace, "--session", SESSION, home=tmp_path)
    assert (timeline.status, timeline.err) == (0, "")
    assert json.loads(timeline.out)["otherData"]["requests"] == 2


def test_old_session_is_exported(tmp_path: Path) -> None:
    recording = unpack(tmp_path / "recording")
    data = recording.folder / "data"
    exported = dovetail("export", SESSION, "--data-dir", data, home=tmp_path)
    assert exported.status == 0, exported.err
    (sample,) = map(json.loads, exported.out.splitlines())
    assert (sample["session"], sample["ids"]) == (SESSION, recording.turn_ids(1))
    listed = dovetail("export", "--list", "--data-dir", data, home=tmp_path)
    assert SESSION in listed.out
