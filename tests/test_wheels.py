"""Each wheel installs alone, with only what it declares, and imports."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.registry
def test_each_wheel_stands_alone(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "wheels.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dovetail_model imports; installed for it: dovetail-model msgspec\n" in done.stdout
    assert "dovetail_verify imports" in done.stdout
    assert (
        "dovetail_parsers imports; installed for it: dovetail-model dovetail-parsers msgspec\n"
        in done.stdout
    )
