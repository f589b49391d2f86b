"""Each wheel installs alone, with only what it declares, and imports."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.registry
def test_each_wheel_installs_alone(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "wheels.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dovetail_model imports; installed for it: dovetail-model msgspec\n" in done.stdout
    assert "dovetail_verify imports" in done.stdout
    assert (
        "dovetail_parsers imports; installed for it: dovetail-model dovetail-parsers msgspec\n"
        in done.stdout
    )
    for source in ROOT.glob("packages/*/src"):
        tasks = source.glob("dovetail/compare/tasks/*/**/*")  # also hidden files
        data = [path for path in (*source.rglob("templates/*.*"), *tasks) if path.is_file()]
        names = {path.relative_to(source).as_posix() for path in data if path.suffix != ".pyc"}
        assert names <= _packed_files(tmp_path, source)


def _packed_files(folder: Path, source: Path) -> set[str]:
    (package,) = source.glob("dovetail*")
    (wheel,) = folder.glob(f"{package.name}-*.whl")
    with ZipFile(wheel) as packed:
        return set(packed.namelist())
