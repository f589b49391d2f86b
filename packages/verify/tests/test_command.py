"""`dovetail-verify` as users run it, without a server."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from dovetail_verify.command import main
from dovetail_verify.suite import BLACK_BOX_CHECKS, SCRIPTED_CHECKS


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dovetail_verify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_is_installed_under_its_name() -> None:
    (found,) = entry_points(group="console_scripts", name="dovetail-verify")
    assert found.load() is main


def test_the_list_has_every_check() -> None:
    ended = run("--list")
    assert ended.returncode == 0, ended.stderr
    listed = [line.split()[0] for line in ended.stdout.splitlines()[:-1]]
    assert listed == [check.id for check in (*BLACK_BOX_CHECKS, *SCRIPTED_CHECKS)]


def test_the_script_of_a_family_is_printed() -> None:
    ended = run("--print-script", "hermes")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("rules:\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "dovetail-verify: the URL of a server is required"),
        (["http://127.0.0.1:9"], "dovetail-verify: no connection to http://127.0.0.1:9 "),
        (["ftp://somewhere"], "not an http address"),
        (["http://127.0.0.1:9", "--only", "no.such.check"], "no check is called no.such.check"),
        (["http://127.0.0.1:9", "--scripted"], "--engine-record"),
        (["--print-script", "no-such-family"], "no-such-family"),
    ],
)
def test_what_cannot_be_done_is_reported_with_status_2(arguments: list[str], message: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_help_does_not_offer_to_start_a_server() -> None:
    ended = run("--help")
    assert ended.returncode == 0
    assert "http://127.0.0.1:8000." in ended.stdout
    assert "Without one" not in ended.stdout
