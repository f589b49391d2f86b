"""The command `dovetail-verify` without a server."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from dovetail_verify.command import main
from dovetail_verify.suite import BLACK_BOX_CHECKS, SCRIPTED_CHECKS


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dovetail_verify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_command_is_installed_as_a_console_script() -> None:
    (found,) = entry_points(group="console_scripts", name="dovetail-verify")
    assert found.load() is main


def test_list_shows_every_check() -> None:
    ended = run("--list")
    assert ended.returncode == 0, ended.stderr
    listed = [line.split()[0] for line in ended.stdout.splitlines()[:-1]]
    assert listed == [check.id for check in (*BLACK_BOX_CHECKS, *SCRIPTED_CHECKS)]


def test_print_script_prints_the_script_of_a_family() -> None:
    ended = run("--print-script", "hermes")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("rules:\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "dovetail-verify: the URL of a server is required"),
        (["http://127.0.0.1:9"], "dovetail-verify: cannot connect to http://127.0.0.1:9 "),
        (["ftp://somewhere"], "must start with http://"),
        (["http://127.0.0.1:9", "--only", "no.such.check"], "no check matches no.such.check"),
        (["http://127.0.0.1:9", "--scripted"], "--engine-record"),
        (["--print-script", "no-such-family"], "no-such-family"),
    ],
)
def test_errors_are_reported_with_exit_status_2(arguments: list[str], message: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_help_does_not_mention_starting_a_server() -> None:
    ended = run("--help")
    assert ended.returncode == 0
    assert "http://127.0.0.1:8000." in ended.stdout
    assert "Without a URL" not in ended.stdout
