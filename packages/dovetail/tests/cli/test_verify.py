"""`dovetail verify` as users run it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import Running, dovetail, served
from verify_failures import faulty_server, turned_away

from dovetail.launch.scripted_server import prepare_scripted_server
from dovetail_verify.suite import BLACK_BOX_CHECKS, SCRIPTED_CHECKS

pytestmark = pytest.mark.timeout(120)
KEY = "a-key"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    own = prepare_scripted_server(tmp_path_factory.mktemp("own"))
    with served(*own.arguments, environment={"DOVETAIL_API_KEY": KEY}) as running:
        yield running


def test_a_server_that_passes_ends_with_0_and_all_reports(running: Running, tmp_path: Path) -> None:
    wanted = ["--only", "models", "--only", "transport.wrong_key", "--api-key", KEY]
    ended = dovetail(
        *("verify", running.url, *wanted, "--all"),
        *("--html", "report.html", "--json", "report.json"),
        home=tmp_path,
    )
    assert ended.status == 0, ended.out + ended.err
    assert "6 passed, 0 failed" in ended.out
    assert "some-org/some-model" in ended.out
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["outcomes"]["pass"] == 6
    assert (tmp_path / "report.html").read_text("utf-8").startswith("<!doctype html>")


def test_a_failure_ends_with_1_and_json_alone_on_standard_output(tmp_path: Path) -> None:
    wanted = ["--only", "transport.health", "--json", "-"]
    with faulty_server(tmp_path) as play:
        play.layer.fault = turned_away(lambda asked: asked.path == "/health", 404)
        ended = dovetail("verify", f"{play.url}/v1", *wanted, home=tmp_path)
    assert ended.status == 1, ended.out + ended.err
    assert json.loads(ended.out)["outcomes"]["fail"] == 1
    assert "FAIL  transport.health" in ended.err


def test_a_model_that_is_not_there_is_told_once(running: Running, tmp_path: Path) -> None:
    wrong = ["--model", "no-such-model", "--api-key", KEY]
    ended = dovetail("verify", running.url, *wrong, home=tmp_path)
    assert ended.status == 2
    assert "the model no-such-model does not answer" in ended.err
    assert KEY not in ended.out + ended.err


def test_what_was_found_before_an_interruption_is_told(running: Running, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dovetail", "verify", running.url, "--json", "report.json"]
    with subprocess.Popen(
        [*command, "--api-key", KEY], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("pass"):
                process.send_signal(signal.SIGINT)
                break
        out = process.stdout.read()
    assert process.returncode == 130, out
    assert "interrupted after" in out
    assert "not all of its checks were run" in out
    outcomes = json.loads((tmp_path / "report.json").read_text("utf-8"))["outcomes"]
    assert outcomes["pass"] > 0


def test_without_an_address_dovetail_judges_itself(tmp_path: Path) -> None:
    wanted = ["--only", "messages.stream", "--only", "messages.scripted.order.stream"]
    ended = dovetail("verify", *wanted, home=tmp_path)
    assert ended.status == 0, ended.out + ended.err
    assert "0 failed, 0 not applicable" in ended.out


def test_the_list_names_every_check(tmp_path: Path) -> None:
    ended = dovetail("verify", "--list", home=tmp_path)
    assert ended.status == 0
    assert f"{len(BLACK_BOX_CHECKS) + len(SCRIPTED_CHECKS)} checks" in ended.out
    for check in (*BLACK_BOX_CHECKS, *SCRIPTED_CHECKS):
        assert check.id in ended.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://127.0.0.1:9"], "no connection"),
        (["ftp://somewhere"], "not an http address"),
        (["--only", "no.such.check"], "no check is called"),
        (["--scripted", "http://127.0.0.1:9"], "--engine-record"),
        (["--print-script", "no-such-family"], "no-such-family"),
        (["--print-script", "gpt_oss"], "ends a turn at its first call"),
        (["--print-script", "llama3_json"], "llama3_json+deepseek_r1"),
    ],
)
def test_what_cannot_be_done_is_told_and_ends_with_2(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    ended = dovetail("verify", *arguments, home=tmp_path)
    assert ended.status == 2
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_server_that_asks_for_a_key_is_told_so(running: Running, tmp_path: Path) -> None:
    ended = dovetail("verify", running.url, home=tmp_path)
    assert ended.status == 2
    assert "--api-key" in ended.err


def test_the_script_of_a_family_is_printed(tmp_path: Path) -> None:
    ended = dovetail("verify", "--print-script", "hermes", home=tmp_path)
    assert ended.status == 0
    assert "rules:" in ended.out
