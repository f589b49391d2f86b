"""The command `dovetail verify`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from server_process import Running, dovetail, served
from verify_failures import faulty_server, respond_when

from dovetail.launch.scripted_server import prepare_scripted_server
from dovetail_verify.suite import BLACK_BOX_CHECKS, SCRIPTED_CHECKS

pytestmark = pytest.mark.timeout(120)
KEY = "a-key"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    own = prepare_scripted_server(tmp_path_factory.mktemp("own"))
    with served(*own.arguments, environment={"DOVETAIL_API_KEY": KEY}) as running:
        yield running


def test_passing_server_exits_with_0_and_writes_all_reports(
    running: Running, tmp_path: Path
) -> None:
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


def run_standalone(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run `dovetail-verify` in a process that cannot import Dovetail."""
    blocked = "import sys; sys.modules['dovetail'] = None; import dovetail_verify.command as c; "
    return subprocess.run(
        [sys.executable, "-c", f"{blocked}c.main()", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_standalone_command_supports_scripted_mode(tmp_path: Path) -> None:
    server = prepare_scripted_server(tmp_path)
    checks = ["--only", "transport", "--only", "*.scripted.usage", "--only", "*.scripted.replay.*"]
    with served(*server.arguments, environment={"DOVETAIL_API_KEY": KEY}) as running:
        ended = run_standalone(
            *(running.url, "--api-key", KEY, *checks, "--json", str(tmp_path / "report.json")),
            *("--scripted", "--engine-record", str(server.record_path)),
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert report["outcomes"] == {
        "pass": report["checks"],
        "fail": 0,
        "not applicable": 0,
        "error": 0,
    }
    assert report["checks"] > 20


def test_standalone_command_verifies_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server")
    (tmp_path / "model").mkdir()
    server = prepare_scripted_server(tmp_path / "model")
    tls = ("--tls-cert-path", issued.cert, "--tls-key-path", issued.key)
    with served(*server.arguments, *tls) as running:
        refused = run_standalone(running.url)
        trusted = run_standalone(running.url, "--only", "models", SSL_CERT_FILE=str(authority.file))
    assert refused.returncode == 2
    assert "dovetail-verify: cannot connect to https://" in refused.stderr
    assert "certificate" in refused.stderr
    assert trusted.returncode == 0, trusted.stdout + trusted.stderr


def test_failure_exits_with_1_and_prints_only_json_to_standard_output(tmp_path: Path) -> None:
    wanted = ["--only", "transport.health", "--json", "-"]
    with faulty_server(tmp_path) as faulty:
        faulty.layer.fault = respond_when(lambda request: request.path == "/health", 404)
        ended = dovetail("verify", f"{faulty.url}/v1", *wanted, home=tmp_path)
    assert ended.status == 1, ended.out + ended.err
    assert json.loads(ended.out)["outcomes"]["fail"] == 1
    assert "FAIL  transport.health" in ended.err


def test_missing_model_is_reported_once(running: Running, tmp_path: Path) -> None:
    wrong = ["--model", "no-such-model", "--api-key", KEY]
    ended = dovetail("verify", running.url, *wrong, home=tmp_path)
    assert ended.status == 2
    assert "the model no-such-model does not respond" in ended.err
    assert KEY not in ended.out + ended.err


def test_interrupted_run_reports_the_results_so_far(running: Running, tmp_path: Path) -> None:
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
    assert "not all checks of this API ran" in out
    outcomes = json.loads((tmp_path / "report.json").read_text("utf-8"))["outcomes"]
    assert outcomes["pass"] > 0


def test_without_a_url_the_command_checks_dovetail(tmp_path: Path) -> None:
    wanted = ["--only", "messages.stream", "--only", "messages.scripted.order.stream"]
    ended = dovetail("verify", *wanted, home=tmp_path)
    assert ended.status == 0, ended.out + ended.err
    assert "0 failed, 0 not applicable" in ended.out


def test_list_shows_every_check(tmp_path: Path) -> None:
    ended = dovetail("verify", "--list", home=tmp_path)
    assert ended.status == 0
    assert f"{len(BLACK_BOX_CHECKS) + len(SCRIPTED_CHECKS)} checks" in ended.out
    for check in (*BLACK_BOX_CHECKS, *SCRIPTED_CHECKS):
        assert check.id in ended.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["http://127.0.0.1:9"], "cannot connect"),
        (["ftp://somewhere"], "must start with http://"),
        (["--only", "no.such.check"], "no check matches"),
        (["--scripted", "http://127.0.0.1:9"], "--engine-record"),
        (["--print-script", "no-such-family"], "no-such-family"),
        (["--print-script", "gpt_oss"], "ends a turn at its first call"),
        (["--print-script", "llama3_json"], "llama3_json+deepseek_r1"),
    ],
)
def test_errors_are_reported_with_exit_status_2(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    ended = dovetail("verify", *arguments, home=tmp_path)
    assert ended.status == 2
    assert expected in ended.err
    assert "Traceback" not in ended.err


def test_missing_api_key_is_reported(running: Running, tmp_path: Path) -> None:
    ended = dovetail("verify", running.url, home=tmp_path)
    assert ended.status == 2
    assert "--api-key" in ended.err


def test_print_script_prints_the_script_of_a_family(tmp_path: Path) -> None:
    ended = dovetail("verify", "--print-script", "hermes", home=tmp_path)
    assert ended.status == 0
    assert "rules:" in ended.out
