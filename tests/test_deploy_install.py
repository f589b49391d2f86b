"""Installation from a clone into new environments, as in the Containerfile and by users."""

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
def test_packages_of_the_image_can_be_installed(tmp_path: Path) -> None:
    """Runs the line of the Containerfile with another path of the environment."""
    text = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^RUN (python -m venv .*)$", text, re.MULTILINE)
    place = tmp_path / "dovetail"
    script = line.replace("python -m", f"{sys.executable} -m").replace("/opt/dovetail", str(place))
    _run("sh", "-euc", script, cwd=ROOT)
    assert "--workers" in _run(place / "bin" / "dovetail", "serve", "--help", cwd=tmp_path)


@pytest.mark.long
@pytest.mark.registry
@pytest.mark.timeout(900)
def test_clone_can_be_installed_with_extras(tmp_path: Path) -> None:
    """From another folder: the other packages come from the clone, not from an index."""
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
    """Run a command without our environment variables, and return its output. It must succeed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DOVETAIL_")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
