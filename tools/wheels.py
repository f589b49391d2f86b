"""Build the wheels of all packages into a folder, then test each of them alone.

Each wheel is installed by name into a clean venv, from a wheelhouse with only our wheels and their
declared dependencies, so that undeclared ones are missing; then all its modules are imported.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Imported only by child processes, which run in an environment that has it.
IN_OTHER_ENVIRONMENTS = ("vllm",)
IMPORT_ALL = """
import importlib, importlib.metadata, importlib.resources, pkgutil, re, sys
package = importlib.import_module(sys.argv[1])
wanted = importlib.metadata.requires(sys.argv[1].replace("_", "-")) or ()
extras = {re.match(r"[\\w.-]+", one)[0] for one in wanted if "extra ==" in one}
extras |= {one.partition("-")[0] for one in extras}  # as opentelemetry-sdk is imported
extras |= set(sys.argv[2:])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] not in extras:
            raise
assert importlib.resources.files(package).joinpath("py.typed").is_file(), "no py.typed"
names = sorted(dist.name for dist in importlib.metadata.distributions())
print(package.__name__, "imports; installed for it:", *names)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Build each wheel and test it alone.")
    parser.add_argument("folder", type=Path, help="folder for the wheels")
    wheels = build(parser.parse_args().folder.resolve())
    with tempfile.TemporaryDirectory() as scratch:
        wheelhouse = Path(scratch) / "wheelhouse"
        constraints = str(ROOT / "constraints.txt")
        pip("download", "--dest", str(wheelhouse), "--constraint", constraints, *map(str, wheels))
        for wheel in wheels:
            name = wheel.name.split("-")[0]
            stand_alone(name, wheelhouse, Path(scratch) / name)


def build(folder: Path) -> list[Path]:
    for old in folder.glob("dovetail*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    by_version = {**os.environ, "DOVETAIL_SIBLINGS": "index"}
    for home in sorted(ROOT.glob("packages/*/pyproject.toml")):
        build_one = [*command, str(home.parent)]
        subprocess.run(build_one, check=True, stdout=subprocess.DEVNULL, env=by_version)
    return sorted(folder.glob("dovetail*.whl"))


def stand_alone(name: str, wheelhouse: Path, home: Path) -> None:
    venv.create(home, with_pip=False, symlinks=True)
    python = str(home / "bin" / "python")
    pip("--python", python, "install", "--no-index", "--find-links", str(wheelhouse), name)
    subprocess.run([python, "-I", "-c", IMPORT_ALL, name, *IN_OTHER_ENVIRONMENTS], check=True)


def pip(*arguments: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", *quiet, *arguments], check=True)


if __name__ == "__main__":
    main()
