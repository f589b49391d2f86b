"""The bundle of the GPU experiments has all dependencies of the server, without downloads.

The packages are copied from this environment into a folder, instead of the wheels that the bundle
downloads; an interpreter that sees only that folder and our sources imports the server.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import distribution, distributions, version
from pathlib import Path
from zipfile import ZipFile

import pytest
from benchmarks.gpu import bundle
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT, *sorted((ROOT / "packages").glob("*/src"))]
#: Modules that the experiments start and import.
MODULES = (
    "benchmarks.gpu.__main__",
    "benchmarks.gpu.server",
    "dovetail.cli.serve",
    "dovetail.cli.worker",
    "dovetail.demo.session",
    "dovetail.engines.transformers.engine",
    "dovetail.http.app",
    "dovetail.http.websocket.protocol",
    "dovetail.server.build",
    "dovetail.server.http_server",
    "dovetail.server.supervisor",
    "dovetail_verify",
    "tokenizers",
    "yaml",
)
#: Not on any path: packages of this environment must not hide gaps of the bundle.
FOREIGN = ("pytest", "anthropic", "openai")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle's site folder, with the dependencies of torch and transformers."""
    folder = tmp_path_factory.mktemp("bundle") / "site"
    for name in (*bundle.PACKAGES, *bundle.EXPECTED):
        copy_package(name, folder)
    bundle.name_ours(folder)
    return folder


def copy_package(name: str, site: Path) -> None:
    """Copy the files that a bundle keeps of an installed package."""
    found = distribution(name)
    for file in found.files or ():
        if ".." in file.parts or not bundle.is_used(str(file)):
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(found.locate_file(file)), target)


def run_isolated(site: Path, code: str) -> "subprocess.CompletedProcess[str]":
    """Run code that sees the standard library, the bundle and our sources."""
    paths = [str(site), *map(str, SOURCES)]
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path += {paths!r}; {code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_server_is_imported_from_the_bundle_only(site: Path) -> None:
    done = run_isolated(site, f"import {', '.join(MODULES)}")
    assert done.returncode == 0, done.stderr


def test_command_line_runs_from_the_bundle_only(site: Path) -> None:
    done = run_isolated(
        site, "from dovetail.cli.main import main; sys.argv[1:] = ['--version']; main()"
    )
    assert done.returncode == 0, done.stderr
    assert version("dovetail") in done.stdout


@pytest.mark.parametrize("module", FOREIGN)
def test_other_packages_of_this_environment_are_hidden(site: Path, module: str) -> None:
    assert "No module named" in run_isolated(site, f"import {module}").stderr


def test_every_dependency_is_bundled_or_expected() -> None:
    needed = required(["dovetail", "llguidance"])
    ours = {one for one in needed if one.startswith("dovetail")}
    missing = needed - ours - set(bundle.PACKAGES) - required(bundle.EXPECTED)
    assert not missing, "in neither PACKAGES nor what EXPECTED brings along"


def required(names: Iterable[str]) -> set[str]:
    """Return the packages and their installed requirements, recursively and without extras."""
    found: set[str] = set()
    rest = list(names)
    while rest:
        name = canonicalize_name(rest.pop())
        if name not in found:
            found.add(name)
            wanted = map(Requirement, distribution(name).requires or ())
            rest += [one.name for one in wanted if _applies(one)]
    return found


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _wheel(path: Path, *names: str) -> Path:
    with ZipFile(path, "w") as packed:
        for name in names:
            packed.writestr(name, "")
    return path


def test_wheel_for_another_python_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_strip", lambda site: None)
    good = _wheel(tmp_path / "good.whl", "a/__init__.py", "a/b.abi3.so", "a/tests/t.py", "a/c.pyx")
    bundle.unpack([good], tmp_path / "site")
    unpacked = {file.name for file in (tmp_path / "site").rglob("*") if file.is_file()}
    assert unpacked == {"__init__.py", "b.abi3.so"}
    bad = _wheel(tmp_path / "bad.whl", "a/b.cpython-311-x86_64-linux-gnu.so")
    with pytest.raises(bundle.BundleError, match=r"not for Python 3\.12"):
        bundle.unpack([bad], tmp_path / "site")


def test_our_packages_report_their_versions(tmp_path: Path) -> None:
    bundle.name_ours(tmp_path)
    found = {one.name: one.version for one in distributions(path=[str(tmp_path)])}
    assert found["dovetail"] == version("dovetail")
    assert set(found) > {"dovetail-model", "dovetail-parsers", "dovetail-protocols"}


def test_model_folder_has_no_weights(tmp_path: Path) -> None:
    if not bundle.TOKENIZER.is_dir():
        pytest.skip("no tokenizer qwen3 at hand: make tokenizers")
    folder = bundle.lay_out_model(tmp_path / "model", num_hidden_layers=2)
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"]) == (4096, 2)
    assert "chat_template" in json.loads((folder / "tokenizer_config.json").read_text())
    assert not list(folder.glob("*.safetensors"))
