"""`dovetail eval` as users run it: on a Dovetail server, and on an engine without a chat API."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from eval_fixture import MODEL, perfect
from server_process import TIMEOUT_SECONDS, clean_environment, dovetail, qwen_folder, served

from dovetail.eval.tasks import TASKS

READ = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")


@pytest.fixture(scope="module")
def place(tmp_path_factory: Any) -> Path:
    """A folder with a model and a script that solves every task."""
    place: Path = tmp_path_factory.mktemp("accept")
    qwen_folder(place / "model")
    (place / "script.yaml").write_text(json.dumps(perfect()))
    return place


@contextmanager
def scripted(place: Path) -> Iterator[str]:
    """Run the scripted engine in a separate process, and yield its address."""
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--port", "0", "--model", "model"]
    command += ["--script", "script.yaml", "--served-model-name", MODEL, "--chunk", "4"]
    with subprocess.Popen(
        command, cwd=place, env=clean_environment(place), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().rpartition(" ")[2].strip()
        finally:
            process.terminate()
            process.wait(TIMEOUT_SECONDS)


def test_dovetail_is_evaluated_with_its_key(place: Path) -> None:
    model = ("--engine", "scripted", "--script", place / "script.yaml", "--api-key", "se-cret")
    with served(place / "model", *model, *READ, "--served-model-name", MODEL) as running:
        report_path = place / "report.json"
        locked = dovetail("eval", running.url, home=place)
        ended = dovetail(
            *("eval", running.url, "--tasks", "par*", "--tasks", "write", "--api", "responses"),
            *("--json", report_path, "--html", place / "report.html", "--repeat", "2"),
            home=place,
            environment={"DOVETAIL_ENGINE_API_KEY": "se-cret"},
        )
    assert locked.status == 2
    assert "pass its key with --api-key" in locked.err
    assert ended.status == 0, ended.err
    assert "tasks solved" in ended.out
    assert "4 of 4" in ended.out
    assert "Dovetail connects to it as openai" in ended.err
    assert ended.err.count("solved") == 8
    report = json.loads(report_path.read_text())
    assert (report["model"], report["faults"]) == (MODEL, 0)
    assert [one["name"] for one in report["passes"]] == ["off", "on, responses"]
    tasks = [one["task"] for one in report["passes"][0]["done"]]
    assert tasks == ["write", "parallel"] * 2
    assert (place / "report.html").read_text().startswith("<!doctype html>")
    assert "se-cret" not in ended.out + ended.err + report_path.read_text()


@pytest.mark.long
def test_engine_without_chat_api_is_evaluated_through_dovetail(place: Path) -> None:
    with scripted(place) as url:
        ended = dovetail(
            *("eval", url, "--tasks", "find", "--api", "messages", "--tokenizer", "model"),
            *(*READ, "--json", "-"),
            home=place,
        )
    report = json.loads(ended.out)
    off, on = report["passes"]
    assert ended.status == 1  # the engine has no chat API
    assert off["refused"].startswith("status 404")
    assert report["engine"] == "vllm"
    assert (on["tasks_solved"], on["faults"], on["refused"]) == (1, [], "")
    assert (on["prefixes"]["exact"], on["prefixes"]["later"]) == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "URL is missing"),
        (("http://127.0.0.1:9",), "is a server running there?"),
        (("http://127.0.0.1:9", "--api", "soap"), "--api must be one of messages, responses, chat"),
        (("http://127.0.0.1:9", "--tasks", "cook"), "--tasks matches none of"),
        (("ftp://somewhere",), "expected an http://"),
    ],
)
def test_errors_are_reported_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    ended = dovetail("eval", *arguments, home=tmp_path)
    assert ended.status == 2
    assert words in ended.err
    assert ended.err.startswith("dovetail eval: ")


def test_list_prints_the_tasks(tmp_path: Path) -> None:
    ended = dovetail("eval", "--list", home=tmp_path)
    assert [line.split()[0] for line in ended.out.splitlines()] == [task.id for task in TASKS]


def test_former_command_name_stays_valid(tmp_path: Path) -> None:
    listed = dovetail("eval", "--list", home=tmp_path).out
    assert dovetail("accept", "--list", home=tmp_path).out == listed
    assert "accept" not in dovetail("--help", home=tmp_path).out
