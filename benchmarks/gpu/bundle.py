"""Build a folder with everything that the experiments need on a machine without package access.

`python -m benchmarks.gpu.bundle [FOLDER]` unpacks wheels for Python 3.12 into FOLDER/site and
creates FOLDER/model: the shape of Qwen3-8B, its tokenizer and template, no weights. FOLDER.tar.xz
contains both. torch, transformers and their dependencies (`EXPECTED`) must be installed on that
machine; set PYTHONPATH to FOLDER/site, the folders packages/*/src and the repository.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from benchmarks.report import ROOT

FOLDER = ROOT / ".cache" / "gpu"
TOKENIZER = ROOT / ".cache" / "tokenizers" / "qwen3"

#: Dependencies of our packages, direct and indirect, except those in `EXPECTED`.
PACKAGES = (
    "annotated-doc",
    "annotated-types",
    "brotli",
    "cffi",
    "click",
    "cryptography",
    "h11",
    "httptools",
    "llguidance",
    "markdown-it-py",
    "mdurl",
    "msgspec",
    "prometheus-client",
    "pycparser",
    "pydantic",
    "pydantic-core",
    "pygments",
    "pypdf",
    "rich",
    "shellingham",
    "typer",
    "typing-inspection",
    "uvicorn",
    "uvloop",
    "websockets",
    "xxhash",
    "zstandard",
)
#: Dependencies of torch and transformers that our packages import, too.
EXPECTED = ("jinja2", "markupsafe", "pyyaml", "tokenizers", "typing-extensions")
PLATFORMS = ("manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64")
PYTHON = "3.12"
_FITS = re.compile(r"\.(cpython-312-x86_64-linux-gnu|abi3)\.so$")
_UNUSED = ("tests", "test", "testing", "__pycache__")
_SOURCES = (".c", ".h", ".pxd", ".pyx", ".pyi")

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "dtype": "bfloat16",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
GENERATION = {
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "bos_token_id": 151643,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
}


class BundleError(Exception):
    """Raised if no working folder can be built; the message is the reason."""


def lay_out_model(folder: Path, **shape: int) -> Path:
    """Create a model folder without weights. `shape` overrides values of its config."""
    tokenizer = TOKENIZER
    if not (tokenizer / "tokenizer.json").is_file():
        raise BundleError("the tokenizer of Qwen3 is missing: run `make tokenizers`")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder)
    (folder / "config.json").write_text(json.dumps({**SHAPE, **shape}, indent=2), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION, indent=2), "utf-8")
    return folder


def fetch_wheels(folder: Path, packages: Iterable[str] = PACKAGES) -> list[Path]:
    """Download wheels of the versions that are installed here, or of the newest versions."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *platforms]
    command += ["--python-version", PYTHON, "--implementation", "cp", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", str(folder), *map(_wanted, packages)], check=True)
    return sorted(folder.glob("*.whl"))


def unpack(wheels: Iterable[Path], site: Path) -> None:
    """Unpack wheels. Raises if a native module would not load."""
    for wheel in wheels:
        with ZipFile(wheel) as packed:
            used = [name for name in packed.namelist() if is_used(name)]
            unfit = [name for name in used if ".so" in name and not _loads(name)]
            if unfit:
                raise BundleError(f"{wheel.name} is not for Python {PYTHON}: {unfit[0]}")
            packed.extractall(site, used)
    _strip(site)


def is_used(name: str) -> bool:
    """Return whether to unpack a file: no tests, no native sources, no installer data."""
    folders = Path(name).parts[:-1]
    unused = any(part in _UNUSED or part.endswith(".data") for part in folders)
    return not (unused or name.endswith(_SOURCES))


def name_ours(site: Path) -> None:
    """Write metadata of our packages, which run from source, so that their versions are found."""
    for file in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        name, number = project["name"], project["version"]
        folder = site / f"{name.replace('-', '_')}-{number}.dist-info"
        folder.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
        (folder / "METADATA").write_text(metadata, "utf-8")


def bundle(folder: Path) -> dict[str, int]:
    """Build the folder from scratch, and an archive next to it. Returns the sizes in bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    with TemporaryDirectory(prefix="dovetail-wheels-") as scratch:
        unpack(fetch_wheels(Path(scratch)), folder / "site")
    name_ours(folder / "site")
    lay_out_model(folder / "model")
    archive = Path(shutil.make_archive(str(folder), "xztar", folder.parent, folder.name))
    return {
        "site": _size((folder / "site").rglob("*")),
        "model": _size((folder / "model").rglob("*")),
        archive.name: _size([archive]),
    }


def _wanted(package: str) -> str:
    try:
        return f"{package}=={version(package)}"
    except PackageNotFoundError:
        return package


def _strip(site: Path) -> None:
    """Strip debug information from native modules, which is more than half of all bytes."""
    command = shutil.which("strip")
    if command is not None:
        subprocess.run([command, "--strip-unneeded", *map(str, site.rglob("*.so"))], check=True)


def _loads(name: str) -> bool:
    """Return whether a native module is for this Python; plain libraries are for all versions."""
    return _FITS.search(name) is not None or ".libs/" in name


def _size(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.is_file())


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.gpu.bundle", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    try:
        found = bundle(folder)
    except (BundleError, subprocess.CalledProcessError) as fault:
        raise SystemExit(f"no bundle: {fault}") from fault
    for name, size in found.items():
        print(f"{name:>12} {size / 1e6:6.1f} MB")


if __name__ == "__main__":
    main()
