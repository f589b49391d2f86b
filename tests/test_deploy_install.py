"""What the Containerfile installs, and what users do, in fresh environments from a clone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.long
@pytest.mark.registry
@pytest.mark.timeout(900)
def test_what_the_image_installs_can_be_installed(tmp_path: Path) -> None:
    """The very line, with the environment in another place."""
    text = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^RUN (python -m venv .*)$", text, re.MULTILINE)
    place = tmp_path / "dovetail"
    script = line.replace("python -m", f"{sys.executable} -m").replace("/opt/dovetail", str(place))
    _run("sh", "-euc", script, cwd=ROOT)
    assert "--workers" in _run(place / "bin" / "dovetail", "serve", "--help", cwd=tmp_path)


@pytest.mark.long
@pytest.mark.registry
@pytest.mark.timeout(900)
def test_a_clone_can_be_installed_with_its_extras(tmp_path: Path) -> None:
    """From another folder, as users do: siblings come from the clone, not from an index."""
    _run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    pip = tmp_path / "venv" / "bin" / "pip"
    constraints = ROOT / "constraints.txt"
    clone = f"{ROOT}/packages/dovetail[otel,redis,tiktoken]"
    _run(pip, "install", "-q", "-c", constraints, clone, cwd=tmp_path)
    extras = "import tiktoken, redis, opentelemetry.sdk, dovetail; print(dovetail.__file__)"
    output = _run(tmp_path / "venv" / "bin" / "python", "-c", extras, cwd=tmp_path)
    assert output.startswith(str(tmp_path))
    _run(pip, "check", cwd=tmp_path)


def _run(*command: str | Path, cwd: Path) -> str:
    """What it says, without settings of ours from elsewhere. It has to succeed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DOVETAIL_")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
