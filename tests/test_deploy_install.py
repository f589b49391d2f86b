"""What the Containerfile installs, installed into a fresh environment from a clone."""

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
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DOVETAIL_")}
    done = subprocess.run(
        ["sh", "-euc", script], cwd=ROOT, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = subprocess.run(
        [place / "bin" / "dovetail", "serve", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--workers" in told.stdout
