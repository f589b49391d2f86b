"""Run the examples: clients against a real server with a scripted model, and the plugin."""

import shutil
import subprocess
import sys
from pathlib import Path

from prefix_exactness import assert_exact
from server_process import clean_environment
from server_setup import KIMI, MODEL, call, server_setup, text, think, turns

from dovetail_model import OutputBlock

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command and return what it prints."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean_environment(cwd), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_dispatch_tools_starts_each_tool_before_the_turn_ends(tmp_path: Path) -> None:
    setup = server_setup(tmp_path / "server", KIMI)
    cities = [call("get_weather", city="Paris"), call("get_weather", city="Oslo")]
    outputs: list[list[OutputBlock]] = [
        [think("Two cities."), *cities],
        [text("Paris is warmer.")],
    ]
    with setup.server({"turns": turns(KIMI, *outputs), "end": "fail"}) as server:
        program = EXAMPLES / "dispatch_tools.py"
        output = run(sys.executable, program, f"{server.url}/v1", MODEL, cwd=tmp_path)
    assert output.splitlines() == [
        'start get_weather {"city": "Paris"}',
        'start get_weather {"city": "Oslo"}',
        "turn ended: tool_calls",
        "turn ended: stop",
        "Paris is warmer.",
    ]
    assert "18 degrees in Oslo" in setup.generations[-1].text
    assert_exact(setup.generations, new=1)


def test_minimal_harness_writes_and_runs_a_file(tmp_path: Path) -> None:
    setup = server_setup(tmp_path / "server", KIMI)
    outputs: list[list[OutputBlock]] = [
        [think("A file."), call("write_file", path="hello.sh", content="echo Hello, world\n")],
        [think("Run it."), call("run_command", command="sh hello.sh")],
        [text("It works.")],
    ]
    with setup.server({"turns": turns(KIMI, *outputs), "end": "fail"}) as server:
        program = EXAMPLES / "minimal_harness.py"
        output = run(sys.executable, program, server.url, MODEL, "Say hello.", cwd=tmp_path)
    assert output.splitlines()[-1] == "It works."
    assert (tmp_path / "hello.sh").read_text() == "echo Hello, world\n"
    assert "exit status 0\nHello, world\n" in setup.generations[-1].text
    assert_exact(setup.generations, new=1)


def test_parser_plugin_installs_and_parses(tmp_path: Path) -> None:
    """The build needs no registry: the build backend is one of the development requirements."""
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps")
    build = ("--no-build-isolation", "--target", site)
    run(*pip, *build, EXAMPLES / "parser_plugin", cwd=tmp_path)
    output = tmp_path / "output.txt"
    output.write_text(
        "<why>It is cold.</why><acme_call>"
        '{"name": "get_weather", "arguments": {"city": "Oslo"}}</acme_call>'
    )
    names = ("--tool-call-parser", "acme", "--reasoning-parser", "acme")
    printed = run(
        *(sys.executable, "-m", "dovetail", "parse", *names, output),
        cwd=tmp_path,
        PYTHONPATH=str(site),
    )
    assert '"It is cold."' in printed
    assert '"get_weather"' in printed
    tests = shutil.copytree(EXAMPLES / "parser_plugin" / "tests", tmp_path / "tests")
    summary = run(sys.executable, "-m", "pytest", "-q", tests, cwd=tmp_path, PYTHONPATH=str(site))
    assert "2 passed" in summary
